// EstimatePlan: how one simulated rank of a job keeps one model: the sharding plan of a backend's
// plugin, queried with a simulated world, or none if every rank keeps the whole model. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/step_log.h"

namespace coupler::estimate {

struct EstimateUnit {
  std::string name;
  std::vector<size_t> parameters;             // of LoggedModel::parameters
  std::vector<std::vector<uint64_t>> bounds;  // per parameter: ranks of the group + 1
  int keep = 0;                               // db_keep
  bool whole_gradients = false;
  uint64_t element = 4, compute_element = 4, reduce_element = 4;  // bytes
  bool converts = false;  // computes in another dtype than it keeps, or returns results in another
  bool reduces_converted = false;
};

struct EstimatePlan {
  std::vector<EstimateUnit> units;  // empty: unsharded on every rank
  std::vector<size_t> replicated;
  int world_size = 1, rank = 0;
  int group_rank = 0, group_size = 1;
  int prefetch = 0;
  uint64_t live_elements = 0;
  bool overlap = false;
  int optimizer_buffers = -1, parameter_buffers = -1;  // of offload to a disk; -1: none
  int64_t sub_group = 0;  // elements in a piece of the optimizer's state; unsharded models only
  config::CommunicationConfig communication = {};

  bool can_shard = false;  // the backend shards models, if not this one

  bool sharded() const { return !units.empty(); }
  // LocalSGD leaves gradients where they are.
  bool reduces() const {
    return sharded() || (world_size > 1 && communication.local_sgd_steps == 0);
  }
};

// Whether backend.use of config shards models itself. Throws Error(kPlugin) if it cannot be loaded.
bool shards_models(const config::BackendConfig& config);

// What backend.use of config would do with the model on this rank of `world_size` ranks, all on one
// machine. Throws Error as creating the backend would: kPlugin, kConfig.
EstimatePlan plan_for(const config::BackendConfig& config, const LoggedModel& model, int rank,
                      int world_size);

}  // namespace coupler::estimate
