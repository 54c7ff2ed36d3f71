#include "common/sharding_communicator.h"

#include <coupler/forward.h>
#include <coupler/memory.h>

#include <memory>
#include <string>
#include <string_view>

namespace db {
namespace {

// The host's pointer is to the first member of the base class.
struct ShardingCommunicator : db_forward {
  std::shared_ptr<const Options> options;
  int32_t local_rank = 0;
  int32_t local_size = 0;
  bool owns_base = false;
  db_peer_memory memory{};  // of the base, if it has the extension

  Place place() const { return {communicator.rank, communicator.size, local_rank, local_size}; }
};

const ShardingCommunicator& self(const db_communicator* communicator) {
  return *static_cast<const ShardingCommunicator*>(db_forward_of(communicator));
}

const db_peer_memory* peer_memory_of(const db_communicator* base) {
  const db_communicator_functions* const below = base->functions;
  if (!DB_HAS(below, db_communicator_functions, get_extension) || below->get_extension == nullptr)
    return nullptr;
  return static_cast<const db_peer_memory*>(below->get_extension(base, DB_PEER_MEMORY));
}

void destroy(db_communicator* communicator) {
  const ShardingCommunicator& mine = self(communicator);
  if (mine.owns_base) mine.base->functions->destroy(mine.base);
  delete &mine;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) noexcept;

// Operations are the base's, so memory for them is, too.
db_status allocate(db_communicator* communicator, uint64_t bytes, void** memory, void** handle,
                   db_error* error) {
  db_communicator* const base = self(communicator).base;
  return peer_memory_of(base)->allocate(base, bytes, memory, handle, error);
}

const void* get_extension(const db_communicator* communicator, const char* id) {
  const db_peer_memory& memory = self(communicator).memory;
  const bool asked = id != nullptr && std::string_view(id) == DB_PEER_MEMORY;
  return asked && memory.allocate != nullptr ? &memory : nullptr;
}

std::unique_ptr<ShardingCommunicator> wrap(db_communicator* base) {
  auto made = std::make_unique<ShardingCommunicator>();
  db_forward_init(made.get(), base, destroy);
  if (const db_peer_memory* const below = peer_memory_of(base)) {
    made->memory = {sizeof(db_peer_memory), allocate, below->release};
    made->functions.get_extension = get_extension;
  }
  if (db_forward_base_splits(base)) made->functions.split = split;
  return made;
}

db_status split(db_communicator* communicator, int32_t color, int32_t key, db_communicator** result,
                db_error* error) noexcept {
  const ShardingCommunicator& mine = self(communicator);
  db_communicator* part = nullptr;
  *result = nullptr;
  const db_status status = db_forward_split_base(communicator, color, key, &part, error);
  if (status != DB_OK || part == nullptr) return status;
  const db_status wrapped = guarded("", error, [&]() -> Failure {
    auto made = wrap(part);
    made->options = mine.options;
    made->local_rank = mine.local_rank;
    made->local_size = mine.local_size;
    made->owns_base = true;
    *result = &made.release()->communicator;
    return {};
  });
  if (wrapped != DB_OK) part->functions->destroy(part);
  return wrapped;
}

db_communicator* find_base(const db_communicator_params& params) {
  for (uint64_t i = 0; i < params.base_count; ++i) {
    const db_base* const base = params.bases[i];
    if (base != nullptr && base->role != nullptr && std::string_view(base->role) == "world")
      return base->communicator;
  }
  return nullptr;
}

}  // namespace

db_status create_sharding(const ShardingBackend& backend, const db_communicator_params* params,
                          db_communicator** result, db_error* error) noexcept {
  return guarded("", error, [&]() -> Failure {
    Options options;
    Failure failure = read_params(backend.options, backend.option_count, params, result, &options);
    if (!failure.ok()) return failure;
    const Place place = {params->rank, params->size, params->local_rank, params->local_size};
    failure = backend.check(options, place);
    if (!failure.ok()) return failure;
    db_communicator* const base = find_base(*params);
    if (base == nullptr || base->rank != place.rank || base->size != place.size)
      return Failure::invalid(std::string(backend.name) +
                              " needs a base communicator of role \"world\" with the same rank "
                              "and size as its own");
    auto made = wrap(base);
    made->options = std::make_shared<const Options>(std::move(options));
    made->local_rank = params->local_rank;
    made->local_size = params->local_size;
    *result = &made.release()->communicator;
    return {};
  });
}

db_status probe_sharding(const db_host*, int32_t* score, char* reason,
                         uint64_t reason_capacity) noexcept {
  *score = 1;
  copy_text(reason, reason_capacity, "runs on any transport");
  return DB_OK;
}

db_status plan_sharding(const ShardingBackend& backend, const db_communicator* communicator,
                        const db_model* model, const db_plan** plan, db_error* error) noexcept {
  return guarded("", error, [&]() -> Failure {
    if (plan == nullptr) return Failure::invalid("plan is NULL");
    *plan = nullptr;
    if (communicator == nullptr || communicator->functions->destroy != destroy)
      return Failure::invalid("plan: the communicator belongs to another backend");
    const ShardingCommunicator& mine = self(communicator);
    Model read;
    Failure failure = Model::read(model, &read);
    if (!failure.ok()) return failure;
    return backend.plan(*mine.options, mine.place(), read, plan);
  });
}

}  // namespace db
