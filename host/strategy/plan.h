// ShardPlan: a sharding plugin's plan in the host's own memory, checked. Plain data.
#pragma once

#include <coupler/sharding.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "offload/offload_place.h"
#include "strategy/model.h"

namespace coupler {

struct PlannedParameter {
  size_t index = 0;              // in Model::parameters
  std::vector<uint64_t> bounds;  // ranks of the group + 1
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

// To a disk. To host memory is no offload yet: models are on the CPU.
struct ShardPlan {
  std::vector<PlannedUnit> units;
  std::vector<size_t> replicated;  // indices of parameters in no unit
  int group = 0;
  int group_size = 1;
  int prefetch = 0;
  uint64_t live_elements = 0;
  uint64_t reduce_bytes = 0;
  bool overlap = false;
  std::optional<OffloadPlace> offload_optimizer, offload_parameters;  // none: state stays
};

// Asks the plugin of `comm` (whose ranks all call this with the same model) and checks the answer:
// every element owned once, no parameter in two units, groups of one size. Collective: the ranks
// compare their plans. Throws Error naming plugin, unit, parameter or rank.
ShardPlan ask_plan(Communicator& comm, const Model& model);

}  // namespace coupler
