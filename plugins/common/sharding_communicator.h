// What sharding plugins have in common: a communicator that passes everything on to its base and
// keeps the options, and the C functions around it. A plugin adds a ShardingBackend, which says how
// to check options and how to plan. Thread rules are those of coupler/distributed_backend.h.
#pragma once

#include <coupler/sharding.h>

#include "common/error.h"
#include "common/model.h"
#include "common/options.h"

namespace db {

// Where a communicator is: rank of size, and on its machine.
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
  // Refuses values that no model can have; called by create, before anything else happens.
  Failure (*check)(const Options& options, const Place& place);
  // *plan is of make_plan.
  Failure (*plan)(const Options& options, const Place& place, const Model& model,
                  const db_plan** plan);
};

// DistributedBackend.create, .probe, and db_sharding.plan of such a plugin. No exception leaves
// them.
db_status create_sharding(const ShardingBackend& backend, const db_communicator_params* params,
                          db_communicator** result, db_error* error) noexcept;
db_status probe_sharding(const db_host* host, int32_t* score, char* reason,
                         uint64_t reason_capacity) noexcept;
db_status plan_sharding(const ShardingBackend& backend, const db_communicator* communicator,
                        const db_model* model, const db_plan** plan, db_error* error) noexcept;

}  // namespace db
