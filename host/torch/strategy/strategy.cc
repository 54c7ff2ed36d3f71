#include "strategy/strategy.h"

#include "config/contradictions.h"
#include "strategy/replica.h"
#include "strategy/sharded_model.h"

namespace coupler {

std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config, const MemoryConfig& memory,
                                        const CommunicationConfig& communication) {
  if (comm == nullptr || !comm->can_shard()) {
    return std::make_shared<Replica>(std::move(model), std::move(comm), config, memory,
                                     communication);
  }
  ShardPlan plan = ask_plan(*comm, model);
  if (!plan.units.empty()) {
    throw_first(contradictions_with_division(memory, communication));
    return ShardedModel::make(std::move(model), std::move(plan), std::move(comm), config,
                              communication);
  }
  TrainingConfig replicate = config;
  if (replicate.bucket_cap_mb == 0) {
    replicate.bucket_cap_mb = static_cast<double>(plan.reduce_bytes) / (1 << 20);
  }
  return std::make_shared<Replica>(std::move(model), std::move(comm), replicate, memory,
                                   communication);
}

}  // namespace coupler
