#include "communicator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "common/op.h"
#include "stream.h"

using nccl_double::Call;
using nccl_double::SharedGroup;
using nccl_double::wait_until;

namespace {

// The fault that NCCL_DOUBLE_FAULT sets for this call; "" if none.
std::string fault(const nccl_double::State& state, int number) {
  const char* const text = std::getenv("NCCL_DOUBLE_FAULT");
  if (text == nullptr) return "";
  std::array<char, 16> kind{};
  int rank = -1, at = -1;
  if (std::sscanf(text, "%15[a-z]:%d:%d", kind.data(), &rank, &at) != 3) std::abort();
  return rank == state.rank && at == number ? kind.data() : "";
}

// Runs on the stream. An aborted call simply returns.
void perform(nccl_double::State& state, const std::vector<Call>& calls, int number) {
  const std::string what = fault(state, number);
  if (what == "async") {
    state.error = "NCCL double: the connection to a peer was closed";
    state.result = ncclRemoteError;
  }
  if (!what.empty()) {
    static const nccl_double::Aborted never{false};
    wait_until(what == "stuck" ? never : state.aborted, [] { return false; });
    return;  // without taking part
  }
  std::vector<nccl_double::Message> messages;
  for (const Call& call : calls) {
    if (call.is_message) {
      messages.push_back(call.message);
    } else if (!nccl_double::perform(call.collective, *state.group, state.rank, state.size,
                                     state.aborted)) {
      return;
    }
  }
  state.group->exchange(std::move(messages), state.aborted);
}

}  // namespace

ncclComm::ncclComm(nccl_double::Place place, int rank, int size, bool blocking)
    : place_(std::move(place)) {
  state->rank = rank;
  state->size = size;
  state->blocking = blocking;
}

ncclComm* ncclComm::init(const nccl_double::Place& place, int rank, int size, bool blocking) {
  auto* const comm = new ncclComm(place, rank, size, blocking);
  comm->start([place, self = comm->state] {
    int same = -1;
    self->group =
        SharedGroup::attach(place.name, self->rank, self->size, place.gpu, self->aborted, &same);
    if (same >= 0)
      self->error = "Duplicate GPU detected : rank " + std::to_string(self->rank) + " and rank " +
                    std::to_string(same) + " both on CUDA device " + place.gpu;
    self->result = self->group == nullptr ? ncclInternalError
                   : same >= 0            ? ncclInvalidUsage
                                          : ncclSuccess;
  });
  return comm;
}

ncclComm::~ncclComm() {
  if (job_.joinable()) job_.join();
}

ncclResult_t ncclComm::start(const std::function<void()>& job) {
  if (job_.joinable()) job_.join();
  state->result = ncclInProgress;
  job_ = std::thread(job);
  if (!state->blocking) return ncclInProgress;
  job_.join();
  return static_cast<ncclResult_t>(state->result.load());
}

ncclResult_t ncclComm::ready() const {
  const int result = state->result;
  return result == ncclInProgress ? ncclInvalidArgument : static_cast<ncclResult_t>(result);
}

ncclResult_t ncclComm::launch(std::vector<Call> calls) {
  if (const ncclResult_t result = ready(); result != ncclSuccess) return result;
  const int number = ++state->launched;
  const cudaStream_t stream = calls[0].stream;
  ++state->running;
  auto work = [self = state, calls, number] {
    perform(*self, calls, number);
    --self->running;
  };
  if (state->size == 1) {
    cuda_double::enqueue(stream, std::move(work));
    return ncclSuccess;
  }
  return start([self = state, calls, stream, work] {
    bool connected = true;
    for (const Call& call : calls)
      if (call.is_message) self->group->announce(call.message);
    for (const Call& call : calls)
      connected = connected && (call.is_message ? self->group->connect(call.message, self->aborted)
                                                : self->group->connect(self->aborted));
    if (!connected) {
      --self->running;
      self->result = ncclInternalError;
      return;
    }
    cuda_double::enqueue(stream, work);
    int busy = ncclInProgress;  // unless the stream has already set an error
    self->result.compare_exchange_strong(busy, ncclSuccess);
  });
}

ncclResult_t ncclComm::split(int color, int key, ncclComm** part, bool blocking) {
  if (const ncclResult_t result = ready(); result != ncclSuccess) return result;
  *part = nullptr;
  const nccl_double::Place place = {
      place_.name + "." + std::to_string(++splits_) + "." + std::to_string(color), place_.gpu};
  return start([self = state, color, key, part, blocking, place] {
    SharedGroup& group = *self->group;
    group.choose(color, key);
    if (!group.meet(self->aborted)) {
      *part = ncclComm::init(place, 0, 1, blocking);  // incomplete, as NCCL leaves it
      self->result = ncclInternalError;
      return;
    }
    std::vector<int> members;
    for (int rank = 0; rank < self->size; ++rank)
      if (group.color(rank) == color) members.push_back(rank);
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return group.key(a) < group.key(b); });
    const auto mine = std::find(members.begin(), members.end(), self->rank) - members.begin();
    const bool left = group.meet(self->aborted);  // no new choice before all ranks have read
    if (left && color >= 0)
      *part =
          ncclComm::init(place, static_cast<int>(mine), static_cast<int>(members.size()), blocking);
    self->result = left ? ncclSuccess : ncclInternalError;
  });
}

ncclResult_t ncclComm::shrink(const std::vector<int>& excluded, bool aborts, ncclComm** part,
                              bool blocking) {
  if (aborts) {
    end(true);
    state->aborted = false;
    state->result = ncclSuccess;
  }
  if (const ncclResult_t result = ready(); result != ncclSuccess) return result;
  nccl_double::Place place = {place_.name + ".shrunk." + std::to_string(++shrinks_), place_.gpu};
  for (const int rank : excluded) place.name += "." + std::to_string(rank);
  const auto below =
      std::lower_bound(excluded.begin(), excluded.end(), state->rank) - excluded.begin();
  const int rank = state->rank - static_cast<int>(below);
  const int size = state->size - static_cast<int>(excluded.size());
  return start([self = state, part, blocking, place, rank, size] {
    *part = ncclComm::init(place, rank, size, blocking);
    self->result = ncclSuccess;
  });
}

ncclResult_t ncclComm::know(void* buffer, size_t size, void** handle) {
  if (const ncclResult_t result = ready(); result != ncclSuccess) return result;
  if (size == 0 || !known_.insert(buffer).second) return ncclInvalidArgument;
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t ncclComm::forget(void* handle) {
  return known_.erase(handle) == 1 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclComm::finalize() {
  if (const ncclResult_t result = ready(); result != ncclSuccess) return result;
  return start([self = state] {
    wait_until(self->aborted, [&] { return self->running == 0; });
    self->result = ncclSuccess;
  });
}

void ncclComm::end(bool abort) {
  if (abort) state->aborted = true;
  if (job_.joinable()) job_.join();
  static const nccl_double::Aborted never{false};
  wait_until(never, [&] { return state->running == 0; });
}

ncclResult_t ncclComm::combine(ncclDataType_t type, ncclRedOp_t op,
                               nccl_double::Combine* result) const {
  constexpr std::array<db_dtype, 10> kTypes = {DB_I8,  DB_U8,  DB_I32, DB_U32, DB_I64,
                                               DB_U64, DB_F16, DB_F32, DB_F64, DB_BF16};
  constexpr std::array<db_reduce, 5> kReductions = {DB_SUM, DB_PROD, DB_MAX, DB_MIN, DB_AVG};
  if (static_cast<size_t>(type) >= kTypes.size()) return ncclInvalidArgument;
  result->dtype = kTypes[static_cast<size_t>(type)];
  const bool own = op >= ncclNumOps;
  const auto index = static_cast<size_t>(own ? op - ncclNumOps : op);
  if (own && (index >= scales_.size() || std::isnan(scales_[index]))) return ncclInvalidArgument;
  result->reduce = own ? DB_PREMUL_SUM : kReductions[index];
  if (own) result->scale = scales_[index];
  // As in NCCL: integers are divided at the end; other types are scaled first.
  if (op == ncclAvg && db::is_floating(result->dtype)) result->scale = 1.0 / state->size;
  return ncclSuccess;
}

ncclRedOp_t ncclComm::make_premul(double scale) {
  auto place = std::find_if(scales_.begin(), scales_.end(), [](double s) { return std::isnan(s); });
  if (place == scales_.end()) place = scales_.insert(place, scale);
  *place = scale;
  return static_cast<ncclRedOp_t>(ncclNumOps + (place - scales_.begin()));
}

void ncclComm::drop(ncclRedOp_t op) {
  scales_.at(static_cast<size_t>(op - ncclNumOps)) = std::nan("");
}
