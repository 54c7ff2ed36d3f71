#include "shm/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bootstrap_store.h"
#include "common/cores.h"
#include "common/op.h"
#include "common/serial_queue.h"
#include "shm/joining.h"
#include "shm/meeting.h"
#include "shm/operation_executor.h"
#include "shm/tuning.h"

namespace db::shm {
namespace {

// What a communicator is made with; kept for split.
struct Setup {
  int32_t rank = 0;
  int32_t size = 1;
  int64_t default_timeout_ns = 0;
  int64_t spin_ns = 0;
  uint64_t chunk_bytes = 0;
  Bytes32 key{};
  Reach reach = Reach::kProc;
};

struct Communicator : db_communicator {
  Communicator(const Setup& chosen, Joined joined);

  const Setup setup;
  OperationExecutor executor;
  SerialQueue queue;
};

Communicator* of(db_communicator* communicator) { return static_cast<Communicator*>(communicator); }
const Communicator* of(const db_communicator* communicator) {
  return static_cast<const Communicator*>(communicator);
}

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = host_supports(*op);
  return DB_OK;
}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("shm: ", error, [&] {
    Communicator& self = *of(communicator);
    Op op;
    const Failure invalid = validate(raw, self.rank, self.size, self.setup.default_timeout_ns, &op);
    if (!invalid.ok()) return report(invalid, error);
    return self.queue.submit(op, request, error);
  });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return guarded("shm: ", error, [&] { return of(communicator)->queue.async_error(error); });
}

db_status abort(db_communicator* communicator) {
  return guarded("shm: ", nullptr, [&]() -> Failure {
    // The queue first, so that whatever the executor then gives up counts as aborted.
    of(communicator)->queue.abort();
    of(communicator)->executor.abort();
    return {};
  });
}

void destroy(db_communicator* communicator) {
  Communicator* const self = of(communicator);
  self->executor.abort();
  self->queue.shutdown();
  delete self;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error);

constexpr db_communicator_functions kFunctions = {
    sizeof(db_communicator_functions),
    supports,
    submit,
    SerialQueue::test,
    SerialQueue::wait,
    nullptr,  // wait_stream: host memory only
    SerialQueue::release,
    split,
    async_error,
    abort,
    destroy,
    nullptr,  // get_extension
};

Communicator::Communicator(const Setup& chosen, Joined joined)
    : db_communicator{sizeof(db_communicator), &kFunctions, chosen.rank, chosen.size},
      setup(chosen),
      executor(chosen.rank, chosen.size, std::move(joined), chosen.spin_ns),
      queue(&executor, chosen.size) {}

// Joins the ranks that meet at place; listening: rank 0's. *note: for the log.
Failure open(const Setup& setup, const MeetingPlace& place, const Listening& listening,
             int64_t deadline_ns, db_communicator** result, std::string* note) {
  Joined joined;
  if (setup.size > 1) {
    Failure failure = join({setup.rank, setup.size, setup.key, setup.chunk_bytes, deadline_ns,
                            setup.default_timeout_ns},
                           place, listening, &joined);
    if (!failure.ok()) return failure;
    *note = joined.note;
  }
  *result = new Communicator(setup, std::move(joined));
  return {};
}

// ---- split: the ranks meet over the communicator itself, without the store ----------------------

struct Choice {
  int32_t color = 0;
  int32_t key = 0;
};

// Where the first rank of each group waits for the others, or why it cannot.
struct Invitation {
  int32_t status = DB_OK;
  int32_t native_code = 0;
  Bytes32 id{};
  uint32_t path_size = 0;
  std::array<char, 108> path{};
  std::array<char, 256> text{};
};

template <class T>
db_status gather_all(db_communicator* communicator, const T& own, std::vector<T>* all,
                     db_error* error) {
  all->resize(static_cast<size_t>(communicator->size));
  db_op gather{};
  gather.struct_size = sizeof gather;
  gather.kind = DB_ALL_GATHER;
  gather.dtype = DB_U8;
  gather.send = &own;
  gather.recv = all->data();
  gather.count = sizeof(T);
  gather.memory = DB_MEMORY_HOST;
  gather.flags = DB_OP_BLOCKING;
  db_request* request = nullptr;
  return submit(communicator, &gather, &request, error);
}

Invitation invite(Reach reach, Listening* listening) {
  Invitation invitation;
  const Failure failure = Listening::open(reach, listening);
  invitation.status = failure.status;
  invitation.native_code = failure.native_code;
  copy_text(invitation.text.data(), invitation.text.size(), failure.message.c_str());
  const MeetingPlace& place = listening->place;
  invitation.id = place.id;
  invitation.path_size = static_cast<uint32_t>(place.path.size());
  std::memcpy(invitation.path.data(), place.path.data(), place.path.size());
  return invitation;
}

// The members of the group of this color, by their new rank.
std::vector<int32_t> members_of(const std::vector<Choice>& all, int32_t color) {
  std::vector<int32_t> members;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].color == color) members.push_back(static_cast<int32_t>(rank));
  std::stable_sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  return members;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded("shm: ", error, [&] {
    const Communicator& self = *of(communicator);
    const int64_t deadline = deadline_after(self.setup.default_timeout_ns);
    std::vector<Choice> choices;
    db_status status = gather_all(communicator, Choice{color, key}, &choices, error);
    if (status < 0) return status;
    const std::vector<int32_t> members =
        color < 0 ? std::vector<int32_t>{} : members_of(choices, color);
    const bool leads = members.size() > 1 && members.front() == self.rank;
    Listening listening;
    std::vector<Invitation> invitations;
    status = gather_all(communicator, leads ? invite(self.setup.reach, &listening) : Invitation{},
                        &invitations, error);
    if (status < 0 || members.empty()) return status;
    const Invitation& invitation = invitations[static_cast<size_t>(members.front())];
    if (invitation.status < 0)
      return report(
          Failure::make(invitation.status, "shm: split: " + std::string(invitation.text.data()), 0,
                        members.front(), invitation.native_code),
          error);
    Setup setup = self.setup;
    setup.size = static_cast<int32_t>(members.size());
    setup.rank = static_cast<int32_t>(std::find(members.begin(), members.end(), self.rank) -
                                      members.begin());
    const MeetingPlace place{invitation.id,
                             std::string(invitation.path.data(), invitation.path_size)};
    std::string note;
    Failure failure = open(setup, place, listening, deadline, result, &note);
    if (failure.ok()) return db_status{DB_OK};
    if (failure.failed_rank >= 0)
      failure.failed_rank = members[static_cast<size_t>(failure.failed_rank)];
    failure.message = "shm: split (ranks of the new group): " + failure.message;
    return report(failure, error);
  });
}

}  // namespace

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result) {
  const int64_t begin = now_ns();
  const int64_t deadline = deadline_after(params.default_timeout_ns);
  Setup setup;
  setup.rank = params.rank;
  setup.size = params.size;
  setup.default_timeout_ns = params.default_timeout_ns;
  setup.chunk_bytes =
      settings.chunk_bytes != 0 ? settings.chunk_bytes : tuning_of(params.size).chunk_bytes;
  setup.spin_ns =
      may_spin(std::max(params.local_size, params.size)) ? settings.busy_poll_us * 1000 : 0;
  MeetingPlace place;
  Listening listening;
  if (params.size > 1) {
    const BootstrapStore store(params.store);
    bool has_secret = false;
    Failure failure = store.derive_key("shm", setup.key.data(), &has_secret);
    if (failure.ok())
      failure = meet({params.rank, params.size, deadline, params.default_timeout_ns}, store, &place,
                     &setup.reach, &listening);
    if (!failure.ok()) return failure;
  }
  std::string note;
  Failure failure = open(setup, place, listening, deadline, result, &note);
  if (failure.ok() && params.host != nullptr && params.host->log != nullptr) {
    std::string text = "connected " + std::to_string(setup.size) + " ranks in " +
                       std::to_string((now_ns() - begin) / 1000) + " us, waiting ranks " +
                       (setup.spin_ns > 0 ? "spin briefly" : "sleep at once");
    if (!note.empty()) text += "; " + note;
    params.host->log(params.host->context, DB_LOG_DEBUG, "shm", text.c_str());
  }
  return failure;
}

}  // namespace db::shm
