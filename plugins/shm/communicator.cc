#include "shm/communicator.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/bootstrap_store.h"
#include "common/cores.h"
#include "common/op.h"
#include "shm/groups.h"
#include "shm/peer_memory.h"

namespace db::shm {
namespace {

db_status supports(const db_communicator*, const db_op* op, int32_t* score) {
  *score = host_supports(*op);
  return DB_OK;
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return guarded("shm: ", error,
                 [&] { return Communicator::of(communicator)->queue.async_error(error); });
}

db_status abort(db_communicator* communicator) {
  return guarded("shm: ", nullptr, [&]() -> Failure {
    end_operations(Communicator::of(communicator));
    return {};
  });
}

void destroy(db_communicator* communicator) {
  Communicator* const self = Communicator::of(communicator);
  self->executor.abort();
  self->queue.shutdown();
  delete self;
}

const void* get_extension(const db_communicator* communicator, const char* id) {
  const std::string_view wanted = id != nullptr ? id : "";
  if (wanted == DB_SHRINK) return shrink_extension(communicator);
  return wanted == DB_PEER_MEMORY ? memory_extension(communicator) : nullptr;
}

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
    get_extension,
};

}  // namespace

Communicator::Communicator(const Setup& chosen, Joined joined)
    : db_communicator{sizeof(db_communicator), &kFunctions, chosen.rank, chosen.size},
      setup(chosen),
      executor(chosen.rank, chosen.size, std::move(joined), chosen.patience),
      queue(&executor, chosen.size) {}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("shm: ", error, [&] {
    Communicator& self = *Communicator::of(communicator);
    Op op;
    const Failure invalid = validate(raw, self.rank, self.size, self.setup.default_timeout_ns, &op);
    if (!invalid.ok()) return report(invalid, error);
    return self.queue.submit(op, request, error);
  });
}

void end_operations(Communicator* communicator) {
  // The queue first, so that whatever the executor then gives up counts as aborted.
  communicator->queue.abort();
  communicator->executor.abort();
}

Failure open(const Setup& setup, const MeetingPlace& place, const Listening& listening,
             int64_t deadline_ns, db_communicator** result, std::string* note) {
  Joined joined;
  if (setup.size > 1) {
    const uint64_t arena =
        setup.peer_memory ? arena_bytes_for(setup.size, setup.chunk_bytes) : uint64_t{0};
    Failure failure = join({setup.rank, setup.size, setup.key, setup.chunk_bytes, arena,
                            deadline_ns, setup.default_timeout_ns},
                           place, listening, &joined);
    if (!failure.ok()) return failure;
    *note = joined.note;
  }
  *result = new Communicator(setup, std::move(joined));
  return {};
}

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result) {
  const int64_t begin = now_ns();
  const int64_t deadline = deadline_after(params.default_timeout_ns);
  Setup setup;
  setup.rank = params.rank;
  setup.size = params.size;
  setup.default_timeout_ns = params.default_timeout_ns;
  setup.chunk_bytes = settings.chunk_bytes;
  setup.peer_memory = settings.peer_memory;
  setup.patience = {settings.busy_poll_us * 1000,
                    !may_spin(std::max(params.local_size, params.size))};
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
                       (setup.patience.ns == 0  ? "sleep at once"
                        : setup.patience.yields ? "yield their cores briefly"
                                                : "spin briefly");
    if (!note.empty()) text += "; " + note;
    params.host->log(params.host->context, DB_LOG_DEBUG, "shm", text.c_str());
  }
  return failure;
}

}  // namespace db::shm
