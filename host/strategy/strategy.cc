#include "strategy/strategy.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "strategy/replica.h"
#include "strategy/sharded_model.h"

namespace coupler {

std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config, const MemoryConfig& memory) {
  if (comm == nullptr || !comm->can_shard()) {
    return std::make_shared<Replica>(std::move(model), std::move(comm), config, memory);
  }
  ShardPlan plan = ask_plan(*comm, model);
  if (!plan.units.empty()) {
    if (memory.offload_optimizer_device != "none") {
      throw Error(
          ErrorCode::kConfig,
          fmt::format("memory.offload_optimizer_device is '{}', but the backend divides the "
                      "model '{}' and has options of its own",
                      memory.offload_optimizer_device, model.name),
          {.subject = "memory.offload_optimizer_device",
           .hint = "set backend.deepspeed_like.offload_optimizer.device or "
                   "backend.fsdp.offload.device instead"});
    }
    return ShardedModel::make(std::move(model), std::move(plan), std::move(comm), config);
  }
  TrainingConfig replicate = config;
  if (replicate.bucket_cap_mb == 0) {
    replicate.bucket_cap_mb = static_cast<double>(plan.reduce_bytes) / (1 << 20);
  }
  return std::make_shared<Replica>(std::move(model), std::move(comm), replicate, memory);
}

}  // namespace coupler
