#include "hierarchical/communicator.h"

#include <string>
#include <string_view>
#include <utility>

#include "common/op.h"

namespace db::hierarchical {
namespace {

Communicator* of(db_communicator* communicator) { return static_cast<Communicator*>(communicator); }
const Communicator* of(const db_communicator* communicator) {
  return static_cast<const Communicator*>(communicator);
}

db_status supports_op(const db_communicator* communicator, const db_op* op, int32_t* score) {
  *score = 0;
  return guarded("hierarchical: ", nullptr, [&]() -> Failure {
    *score = supports(*of(communicator)->group, *op) ? 1 : 0;
    return {};
  });
}

db_status submit(db_communicator* communicator, const db_op* raw, db_request** request,
                 db_error* error) {
  *request = nullptr;
  return guarded("hierarchical: ", error, [&] {
    Communicator& self = *of(communicator);
    Op op;
    const Failure invalid = validate(raw, self.rank, self.size, self.default_timeout_ns, &op);
    if (!invalid.ok()) return report(invalid, error);
    if (!supports(*self.group, *raw))
      return report(DB_ERR_UNSUPPORTED,
                    describe(op) + " is not supported by both bases; call supports() first", error);
    return self.queue.submit(op, request, error);
  });
}

db_status async_error(const db_communicator* communicator, db_error* error) {
  return guarded("hierarchical: ", error,
                 [&] { return of(communicator)->queue.async_error(error); });
}

db_status abort(db_communicator* communicator) {
  return guarded("hierarchical: ", nullptr, [&]() -> Failure {
    // The queue first, so that whatever the executor then gives up counts as aborted.
    of(communicator)->queue.abort();
    of(communicator)->group->abort();
    return {};
  });
}

void destroy(db_communicator* communicator) {
  Communicator* const self = of(communicator);
  self->queue.abort();
  self->executor.stop();
  self->queue.shutdown();
  if (self->owns_store) self->store.close();
  delete self;
}

// A base's part of a split; NULL in *part if this rank is in none.
Failure split_base(const Base& base, int32_t color, int32_t key, Transport* part) {
  HostError error;
  const db_status status =
      base.get()->functions->split(base.get(), color, key, &part->communicator, &error.error);
  part->owned = true;
  return status < 0 ? base.translate(status, error) : Failure{};
}

void drop(const Transport& part) {
  if (part.communicator != nullptr) part.communicator->functions->destroy(part.communicator);
}

Failure split_bases(Communicator& self, int32_t color, int32_t key,
                    std::unique_ptr<Group>* result) {
  Transport local, across;
  Failure failure = split_base(*self.group->local, color, key, &local);
  if (failure.ok()) failure = split_base(*self.group->across, color, key, &across);
  if (!failure.ok() || local.communicator == nullptr || across.communicator == nullptr) {
    drop(local);
    drop(across);
    return failure;
  }
  return Group::build(local, across, deadline_after(self.default_timeout_ns), result);
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) {
  *result = nullptr;
  return guarded("hierarchical: ", error, [&]() -> db_status {
    Communicator& self = *of(communicator);
    // The bases are used by one thread at a time.
    if (const db_status status = self.queue.drain(error); status != DB_OK) return status;
    const uint64_t number = ++self.splits;
    std::unique_ptr<Group> group;
    Failure failure = split_bases(self, color, key, &group);
    if (!failure.ok()) {
      failure.flags |= DB_ERROR_COMM_DEAD;
      failure.message = "hierarchical, rank " + std::to_string(self.rank) + ": split " +
                        std::to_string(number) + ": " + failure.message;
      failure = self.board.settle(failure);
      self.queue.fail(failure);
      self.group->abort();
      return report(failure, error);
    }
    if (group == nullptr) return DB_OK;
    const std::string prefix = "split/" + std::to_string(number) + "/" + std::to_string(color);
    *result = new Communicator(std::move(group), self.store.with_prefix(prefix), false,
                               self.default_timeout_ns, self.settings);
    return DB_OK;
  });
}

// Buffers in it are the base's to read in place, since the first and last stages use them directly.
db_status allocate_near(db_communicator* communicator, uint64_t bytes, void** memory, void** handle,
                        db_error* error) {
  return guarded("hierarchical: ", error, [&] {
    const Communicator& self = *of(communicator);
    if (const db_status failed = self.queue.async_error(error); failed < 0) return failed;
    const Base& base = self.group->nearest();
    HostError reason;
    const db_status status =
        base.peer_memory()->allocate(base.get(), bytes, memory, handle, &reason.error);
    return status == DB_OK ? status : report(base.translate(status, reason), error);
  });
}

const void* memory_extension(const db_communicator* communicator, const char* id) {
  const db_peer_memory& memory = of(communicator)->memory;
  const bool asked = id != nullptr && std::string_view(id) == DB_PEER_MEMORY;
  return asked && memory.allocate != nullptr ? &memory : nullptr;
}

constexpr db_communicator_functions functions_with(
    decltype(db_communicator_functions::split) split_function) {
  return {
      sizeof(db_communicator_functions),
      supports_op,
      submit,
      SerialQueue::test,
      SerialQueue::wait,
      nullptr,  // wait_stream: host memory only
      SerialQueue::release,
      split_function,
      async_error,
      abort,
      destroy,
      memory_extension,
  };
}

constexpr db_communicator_functions kFunctions = functions_with(split);
constexpr db_communicator_functions kWithoutSplit = functions_with(nullptr);

const db_communicator_functions* functions_for(const Group& group) {
  return can_split(group.local->get()) && can_split(group.across->get()) ? &kFunctions
                                                                         : &kWithoutSplit;
}

// The base of that role, which must have that rank and size.
Failure find_base(const db_communicator_params& params, std::string_view role, int32_t rank,
                  int32_t size, Transport* base) {
  for (uint64_t i = 0; i < params.base_count; ++i) {
    const db_base* const one = params.bases[i];
    if (one != nullptr && one->role != nullptr && one->role == role)
      base->communicator = one->communicator;
  }
  const std::string name = "base of role \"" + std::string(role) + "\"";
  const auto place = [](int32_t r, int32_t of) {
    return std::to_string(r) + " of " + std::to_string(of);
  };
  if (base->communicator == nullptr)
    return Failure::invalid(
        "the host gave no " + name +
        "; hierarchical needs \"local\", of this machine's ranks, and \"across\", of all ranks");
  if (base->communicator->rank != rank || base->communicator->size != size)
    return Failure::invalid("this rank is " +
                            place(base->communicator->rank, base->communicator->size) + " in its " +
                            name + ", but should be " + place(rank, size));
  return {};
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Group> chosen, BootstrapStore shared, bool is_root,
                           int64_t timeout_ns, const Settings& chosen_settings)
    : db_communicator{sizeof(db_communicator), functions_for(*chosen), chosen->across->rank(),
                      chosen->across->size()},
      group(std::move(chosen)),
      store(std::move(shared)),
      owns_store(is_root),
      default_timeout_ns(timeout_ns),
      settings(chosen_settings),
      board(store, group->layout.rank),
      executor(group.get(), &board, settings),
      queue(&executor, group->layout.size()) {
  if (const db_peer_memory* const below = group->nearest().peer_memory())
    memory = {sizeof(db_peer_memory), allocate_near, below->release};
}

Failure create_communicator(const db_communicator_params& params, const Settings& settings,
                            db_communicator** result) {
  Transport local, across;
  Failure failure = find_base(params, "local", params.local_rank, params.local_size, &local);
  if (failure.ok()) failure = find_base(params, "across", params.rank, params.size, &across);
  std::unique_ptr<Group> group;
  if (failure.ok())
    failure = Group::build(local, across, deadline_after(params.default_timeout_ns), &group);
  if (!failure.ok()) return failure;
  if (params.host != nullptr && params.host->log != nullptr) {
    const Layout& layout = group->layout;
    const std::string text =
        "rank " + std::to_string(layout.rank) + " is " + std::to_string(layout.index()) + " of " +
        std::to_string(layout.own_machine().size()) + " on machine " +
        std::to_string(layout.machine()) + " of " + std::to_string(layout.machine_count()) + "; " +
        (group->whole() != nullptr
             ? "one base connects all ranks and is used alone"
             : std::to_string(layout.lanes) + " ranks of each machine send large data across");
    params.host->log(params.host->context, DB_LOG_DEBUG, "hierarchical", text.c_str());
  }
  *result = new Communicator(std::move(group), BootstrapStore(params.store), true,
                             params.default_timeout_ns, settings);
  return {};
}

}  // namespace db::hierarchical
