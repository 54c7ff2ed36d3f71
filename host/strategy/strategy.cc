#include "strategy/strategy.h"

#include "strategy/replica.h"
#include "strategy/sharded_model.h"

namespace coupler {

std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config) {
  if (comm == nullptr || !comm->can_shard()) {
    return std::make_shared<Replica>(std::move(model), std::move(comm), config);
  }
  ShardPlan plan = ask_plan(*comm, model);
  if (!plan.units.empty()) {
    return ShardedModel::make(std::move(model), std::move(plan), std::move(comm), config);
  }
  TrainingConfig replicate = config;
  if (replicate.bucket_cap_mb == 0) {
    replicate.bucket_cap_mb = static_cast<double>(plan.reduce_bytes) / (1 << 20);
  }
  return std::make_shared<Replica>(std::move(model), std::move(comm), replicate);
}

}  // namespace coupler
