#include "plugin/single_backend.h"

#include <coupler/distributed_backend.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

#include "plugin/single_ops.h"

namespace coupler {

// SelfChannel: messages from a process to itself, matched by tag in order. A send is complete once
// a receive has taken it, so nothing is buffered. [any-thread].

namespace {

class SelfChannel {
 public:
  using Clock = std::chrono::steady_clock;

  struct Message {
    const void* send = nullptr;  // one of the two is set
    void* recv = nullptr;
    uint64_t bytes = 0;
    int32_t tag = 0;
    Clock::time_point deadline;
    db_status status = DB_IN_PROGRESS;
  };
  using Handle = std::shared_ptr<Message>;

  // Matches the message with a waiting one, or lets it wait. The handle may be dropped at any time.
  Handle post(const Message& message);

  // The message's state. After its deadline it is DB_ERR_TIMEOUT, and the channel dead.
  db_status test(const Handle& handle);
  // Blocks until the message is complete or `until` has passed; then DB_IN_PROGRESS.
  db_status wait(const Handle& handle, Clock::time_point until);

  // DB_OK, or what ended the channel.
  db_status state();
  // Ends everything pending as DB_ERR_ABORTED; the first reason becomes the state.
  void end(db_status reason);

 private:
  db_status expire(const Handle& handle);
  void end_locked(db_status reason);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Handle> waiting_;  // all unmatched
  db_status state_ = DB_OK;
};

SelfChannel::Handle SelfChannel::post(const Message& message) {
  auto mine = std::make_shared<Message>(message);
  const std::lock_guard lock(mutex_);
  if (state_ != DB_OK) {
    mine->status = DB_ERR_ABORTED;
    return mine;
  }
  const auto other = std::find_if(waiting_.begin(), waiting_.end(), [&](const Handle& waits) {
    return waits->tag == mine->tag && (waits->send == nullptr) != (mine->send == nullptr);
  });
  if (other == waiting_.end()) {
    waiting_.push_back(mine);
    return mine;
  }
  const Handle theirs = *other;
  waiting_.erase(other);
  if (theirs->bytes != mine->bytes) {
    theirs->status = mine->status = DB_ERR_MISMATCH;
    end_locked(DB_ERR_MISMATCH);
    return mine;
  }
  const Message& from = mine->send != nullptr ? *mine : *theirs;
  const Message& to = mine->send != nullptr ? *theirs : *mine;
  if (from.bytes != 0) std::memmove(to.recv, from.send, from.bytes);
  theirs->status = mine->status = DB_OK;
  changed_.notify_all();
  return mine;
}

db_status SelfChannel::expire(const Handle& handle) {
  if (handle->status == DB_IN_PROGRESS && Clock::now() >= handle->deadline) {
    handle->status = DB_ERR_TIMEOUT;
    std::erase(waiting_, handle);
    end_locked(DB_ERR_TIMEOUT);
  }
  return handle->status;
}

db_status SelfChannel::test(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  return expire(handle);
}

db_status SelfChannel::wait(const Handle& handle, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::min(until, handle->deadline),
                      [&] { return handle->status != DB_IN_PROGRESS; });
  return expire(handle);
}

db_status SelfChannel::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

void SelfChannel::end(db_status reason) {
  const std::lock_guard lock(mutex_);
  end_locked(reason);
}

void SelfChannel::end_locked(db_status reason) {
  if (state_ == DB_OK) state_ = reason;
  for (const Handle& handle : waiting_) handle->status = DB_ERR_ABORTED;
  waiting_.clear();
  changed_.notify_all();
}

using Clock = std::chrono::steady_clock;

struct SelfCommunicator {
  db_communicator base = {};  // first: the host's pointer is a pointer to this struct
  std::shared_ptr<SelfChannel> channel = std::make_shared<SelfChannel>();
  std::chrono::nanoseconds timeout = {};
};

struct SelfRequest {
  std::shared_ptr<SelfChannel> channel;
  SelfChannel::Handle handle;
};

SelfCommunicator* self(db_communicator* communicator) {
  return reinterpret_cast<SelfCommunicator*>(communicator);
}
const SelfCommunicator* self(const db_communicator* communicator) {
  return reinterpret_cast<const SelfCommunicator*>(communicator);
}
SelfRequest* self(db_request* request) { return reinterpret_cast<SelfRequest*>(request); }

// Longer than any use; adding it to now() must not overflow.
constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);

Clock::time_point after(std::chrono::nanoseconds timeout) {
  return Clock::now() + std::min(timeout, kLongest);
}

db_status fill_error(db_error* error, db_status code, std::string_view text, uint32_t flags = 0) {
  if (error == nullptr) return code;
  error->code = code;
  error->native_code = 0;
  error->failed_rank = -1;
  error->flags = flags;
  if (error->message != nullptr && error->message_capacity > 0) {
    const size_t size = std::min<size_t>(text.size(), error->message_capacity - 1);
    std::memcpy(error->message, text.data(), size);
    error->message[size] = '\0';
  }
  return code;
}

db_status outcome(db_status status, db_error* error) {
  switch (status) {
    case DB_OK:
    case DB_IN_PROGRESS:
      return status;
    case DB_ERR_TIMEOUT:
      return fill_error(error, status, "no matching send or receive came before the deadline",
                        DB_ERROR_COMM_DEAD);
    case DB_ERR_MISMATCH:
      return fill_error(error, status, "send and receive differ in size", DB_ERROR_COMM_DEAD);
    default:
      return fill_error(error, status, "the communicator was aborted or failed earlier",
                        DB_ERROR_COMM_DEAD);
  }
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = self_supports(*op) ? 1 : 0;
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* op, db_request** request,
                 db_error* error) {
  *request = nullptr;
  SelfCommunicator* mine = self(communicator);
  if (mine->channel->state() != DB_OK) return outcome(DB_ERR_ABORTED, error);
  if (!self_supports(*op)) {
    return fill_error(
        error, DB_ERR_UNSUPPORTED,
        fmt::format("operation {} with dtype {}, reduction {} and memory {} is not supported",
                    op->kind, op->dtype, op->reduce, op->memory));
  }
  if (const char* problem = self_argument_problem(*op)) {
    return fill_error(error, DB_ERR_INVALID_ARGUMENT, problem);
  }
  if (!is_point_to_point(op->kind)) {
    self_perform(*op);
    return DB_OK;
  }
  SelfChannel::Message message;
  // An empty message may have a NULL pointer; a send must still be recognizable as one.
  static constexpr char nothing = 0;
  if (op->kind == DB_SEND) {
    message.send = op->send != nullptr ? op->send : &nothing;
  } else {
    message.recv = op->recv;
  }
  message.bytes = op->count * dtype_bytes(op->dtype);
  message.tag = op->tag;
  message.deadline =
      after(op->timeout_ns > 0 ? std::chrono::nanoseconds(op->timeout_ns) : mine->timeout);
  try {
    auto pending = std::make_unique<SelfRequest>();
    pending->channel = mine->channel;
    pending->handle = mine->channel->post(message);
    const db_status status = mine->channel->test(pending->handle);
    if (status != DB_IN_PROGRESS) return outcome(status, error);
    *request = reinterpret_cast<db_request*>(pending.release());
    return DB_IN_PROGRESS;
  } catch (const std::bad_alloc&) {
    return fill_error(error, DB_ERR_NO_MEMORY, "no memory for a request");
  }
}

db_status test(db_request* request, db_error* error) {
  return outcome(self(request)->channel->test(self(request)->handle), error);
}

db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  SelfRequest* mine = self(request);
  const Clock::time_point until =
      timeout_ns < 0 ? Clock::time_point::max() : after(std::chrono::nanoseconds(timeout_ns));
  const db_status status = mine->channel->wait(mine->handle, until);
  if (status == DB_IN_PROGRESS) {
    return fill_error(error, DB_ERR_TIMEOUT, "not complete yet; the operation continues",
                      DB_ERROR_RETRYABLE);
  }
  return outcome(status, error);
}

void release(db_request* request) { delete self(request); }

db_status create_like(std::chrono::nanoseconds timeout, db_communicator** result, db_error* error);

db_status split(db_communicator* communicator, int32_t color, int32_t, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  if (self(communicator)->channel->state() != DB_OK) return outcome(DB_ERR_ABORTED, error);
  return color < 0 ? DB_OK : create_like(self(communicator)->timeout, result, error);
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return outcome(self(communicator)->channel->state(), error);
}

db_status abort_pending(db_communicator* communicator) {
  self(communicator)->channel->end(DB_ERR_ABORTED);
  return DB_OK;
}

void destroy(db_communicator* communicator) {
  self(communicator)->channel->end(DB_ERR_ABORTED);
  delete self(communicator);
}

constexpr db_communicator_functions kFunctions = {
    sizeof(db_communicator_functions),
    supports,
    submit,
    test,
    wait_host,
    nullptr,  // wait_stream: host memory only
    release,
    split,
    async_error,
    abort_pending,
    destroy,
    nullptr,  // get_extension: it has none
};

db_status create_like(std::chrono::nanoseconds timeout, db_communicator** result, db_error* error) {
  try {
    auto mine = std::make_unique<SelfCommunicator>();
    mine->base = {sizeof(db_communicator), &kFunctions, 0, 1};
    mine->timeout = timeout;
    *result = &mine.release()->base;
    return DB_OK;
  } catch (const std::bad_alloc&) {
    return fill_error(error, DB_ERR_NO_MEMORY, "no memory for a communicator");
  }
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  *result = nullptr;
  if (params->option_count > 0) {
    return fill_error(
        error, DB_ERR_UNKNOWN_OPTION,
        fmt::format("unknown option \"{}\": single has no options", params->options[0]->key));
  }
  if (params->size != 1 || params->rank != 0) {
    return fill_error(error, DB_ERR_INVALID_ARGUMENT,
                      fmt::format("single is for one process, not for rank {} of {}", params->rank,
                                  params->size));
  }
  return create_like(std::chrono::nanoseconds(params->default_timeout_ns), result, error);
}

db_status probe_self(const db_host*, int32_t* score, char* reason, uint64_t capacity) {
  *score = 1;
  if (reason != nullptr && capacity > 0) {
    const std::string_view text = "built in; one process";
    const size_t size = std::min<size_t>(text.size(), capacity - 1);
    std::memcpy(reason, text.data(), size);
    reason[size] = '\0';
  }
  return DB_OK;
}

const db_option* const* default_options(uint64_t* count) {
  *count = 0;
  return nullptr;
}

}  // namespace

const DistributedBackend& self_backend() {
  static constexpr DistributedBackend table = {
      sizeof(DistributedBackend),
      DB_ABI_MAJOR,
      DB_ABI_MINOR,
      "single",
      "0.1.0",
      "One process, no communication; part of Coupler itself.",
      DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
      probe_self,
      default_options,
      create,
      nullptr,
  };
  return table;
}

}  // namespace coupler
