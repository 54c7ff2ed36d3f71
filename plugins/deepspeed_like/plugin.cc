// The deepspeed_like backend's table. What it decides is in settings.h (options) and plan.cc;
// everything that moves bytes is passed on to the base.
#include <coupler/sharding.h>

#include <string_view>

#include "common/plan_builder.h"
#include "common/sharding_communicator.h"
#include "deepspeed_like/plan.h"
#include "deepspeed_like/settings.h"

namespace db::deepspeed_like {
namespace {

struct OptionPointers {
  const db_option* items[kOptionCount];
};
constexpr OptionPointers kDefaults = [] {
  OptionPointers pointers{};
  for (uint64_t i = 0; i < kOptionCount; ++i) pointers.items[i] = &kOptions[i];
  return pointers;
}();

const db_option* const* default_options(uint64_t* count) {
  *count = kOptionCount;
  return kDefaults.items;
}

constexpr ShardingBackend kShardingBackend = {"deepspeed_like", kDefaults.items, kOptionCount,
                                              check, plan};

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return create_sharding(kShardingBackend, params, result, error);
}

db_status make(const db_communicator* communicator, const db_model* model, const db_plan** plan,
               db_error* error) {
  return plan_sharding(kShardingBackend, communicator, model, plan, error);
}

constexpr db_sharding kSharding = {sizeof(db_sharding), make, release_plan};

const void* get_extension(const char* id) {
  return id != nullptr && std::string_view(id) == DB_SHARDING ? &kSharding : nullptr;
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "deepspeed_like",
    "0.1.0",
    "The stages of ZeRO on flat buffers, with DeepSpeed's options, over any transport",
    DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    probe_sharding,
    default_options,
    create,
    get_extension};

}  // namespace
}  // namespace db::deepspeed_like

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::deepspeed_like::kBackend;
}
