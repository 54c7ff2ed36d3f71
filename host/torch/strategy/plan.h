// ShardPlan: a sharding plugin's plan, checked and copied into the host's memory. Plain data.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "residency/offloaded_memory.h"
#include "strategy/model.h"

namespace coupler::strategy {

struct PlannedParameter {
  size_t index = 0;              // in Model::parameters
  std::vector<uint64_t> bounds;  // [ranks of the group + 1]
};

struct PlannedUnit {
  std::string name;
  std::vector<PlannedParameter> parameters;
  db_keep keep = DB_KEEP_USE;
  db_gradients gradients = DB_GRADIENTS_SHARD;
  at::ScalarType type = at::kFloat;          // of its parameters
  at::ScalarType compute_type = at::kFloat;  // type, unless the plan says otherwise
  at::ScalarType reduce_type = at::kFloat;   // compute_type, unless the plan says otherwise
  std::optional<at::ScalarType> output_type;
};

struct ShardPlan {
  std::vector<PlannedUnit> units;
  std::vector<size_t> replicated;  // indices of parameters in no unit
  int group = 0;
  int group_size = 1;
  std::string copies_group = "data";  // what profiles call the ranks that hold the same part
  int prefetch = 0;
  uint64_t live_elements = 0;
  uint64_t reduce_bytes = 0;
  bool overlap = false;
  // Unset: not offloaded, as is an offload to host memory by a model on the CPU.
  std::optional<residency::OffloadPlace> offload_optimizer, offload_parameters;
};

// Asks the plugin of `comm` (all ranks call this with the same model) and checks its answer: every
// element is owned once, no parameter is in two units, all groups have the same size. Collective:
// the ranks compare their plans. Throws Error naming plugin, unit, parameter or rank.
ShardPlan ask_plan(comm::Communicator& comm, const Model& model);

}  // namespace coupler::strategy
