// Shared by sharding plugins: a communicator that forwards everything to its base and keeps the
// options, and the C functions around it. A plugin adds a ShardingBackend, which checks options and
// plans, and exports a sharding_table of it. Thread rules are those of
// coupler/distributed_backend.h.
#pragma once

#include <coupler/presets.h>
#include <coupler/sharding.h>

#include <string_view>

#include "common/error.h"
#include "common/model.h"
#include "common/options.h"
#include "common/plan_builder.h"

namespace db {

// A communicator's rank and size, in the job and on its machine.
struct Place {
  int32_t rank;
  int32_t size;
  int32_t local_rank;
  int32_t local_size;
};

struct ShardingBackend {
  const char* name;
  const db_option* const* options;
  uint64_t option_count;
  // Rejects values that are wrong for every model; called by create before it does anything else.
  Failure (*check)(const Options& options, const Place& place);
  // *plan comes from make_plan.
  Failure (*plan)(const Options& options, const Place& place, const Model& model,
                  const db_plan** plan);
  db_presets presets;
};

// A preset of these option values, which have static storage.
template <const auto& kOptions>
constexpr db_preset preset(const char* name, const char* description, int32_t step_time) {
  return {sizeof(db_preset),
          name,
          description,
          kPointersTo<kOptions>.data(),
          kPointersTo<kOptions>.size(),
          step_time,
          0};
}

// DistributedBackend.create, .probe, and db_sharding.plan of such a plugin. They never throw.
db_status create_sharding(const ShardingBackend& backend, const db_communicator_params* params,
                          db_communicator** result, db_error* error) noexcept;
db_status probe_sharding(const db_host* host, int32_t* score, char* reason,
                         uint64_t reason_capacity) noexcept;
db_status plan_sharding(const ShardingBackend& backend, const db_communicator* communicator,
                        const db_model* model, const db_plan** plan, db_error* error) noexcept;

// The C functions of one plugin.
template <const ShardingBackend& kBackend>
struct ShardingFunctions {
  static const db_option* const* default_options(uint64_t* count) {
    *count = kBackend.option_count;
    return kBackend.options;
  }
  static db_status create(const db_communicator_params* params, db_communicator** result,
                          db_error* error) {
    return create_sharding(kBackend, params, result, error);
  }
  static db_status plan(const db_communicator* communicator, const db_model* model,
                        const db_plan** plan, db_error* error) {
    return plan_sharding(kBackend, communicator, model, plan, error);
  }
  static const void* get_extension(const char* id) {
    const std::string_view wanted = id != nullptr ? id : "";
    if (wanted == DB_SHARDING) return &kSharding;
    return wanted == DB_PRESETS ? &kBackend.presets : nullptr;
  }
  static constexpr db_sharding kSharding = {sizeof(db_sharding), plan, release_plan};
};

// The table that the plugin's entry function returns; store it in a constant.
template <const ShardingBackend& kBackend>
constexpr DistributedBackend sharding_table(const char* version, const char* description) {
  using Functions = ShardingFunctions<kBackend>;
  return {sizeof(DistributedBackend),
          DB_ABI_MAJOR,
          DB_ABI_MINOR,
          kBackend.name,
          version,
          description,
          DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY |
              DB_CAP_CUDA_MEMORY | DB_CAP_STREAM_ORDERED,
          probe_sharding,
          Functions::default_options,
          Functions::create,
          Functions::get_extension};
}

}  // namespace db
