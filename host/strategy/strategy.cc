#include "strategy/strategy.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "strategy/replica.h"
#include "strategy/sharded_model.h"

namespace coupler {

namespace {

// What only works where every rank has whole parameters, or whole gradients.
void require_divisible(const CommunicationConfig& communication, const Model& model) {
  if (communication.local_sgd_steps > 0) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("communication.local_sgd_steps is {}, but the backend divides the model "
                    "'{}': no rank has parameters of its own that it could train by itself",
                    communication.local_sgd_steps, model.name),
        {.subject = "communication.local_sgd_steps",
         .hint = "use a transport (gloo_cpu, mpi, nccl), stage 0 of deepspeed_like or "
                 "no_shard of fsdp, or set it to 0"});
  }
  if (communication.gradients == "powersgd") {
    throw Error(ErrorCode::kConfig,
                fmt::format("communication.gradients is powersgd, but the backend divides the "
                            "gradients of '{}': its products need whole matrices on every rank",
                            model.name),
                {.subject = "communication.gradients",
                 .hint = "use bf16, fp16 or int8, or a backend that does not divide: a transport, "
                         "stage 0 of deepspeed_like or no_shard of fsdp"});
  }
}

}  // namespace

std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<Communicator> comm,
                                        const TrainingConfig& config, const MemoryConfig& memory,
                                        const CommunicationConfig& communication) {
  if (communication.local_sgd_steps > 0 && communication.gradients != "none") {
    throw Error(ErrorCode::kConfig,
                fmt::format("communication.gradients is '{}', but with LocalSGD "
                            "(communication.local_sgd_steps = {}) no gradients are sent",
                            communication.gradients, communication.local_sgd_steps),
                {.subject = "communication.gradients", .hint = "set one of the two only"});
  }
  if (comm == nullptr || !comm->can_shard()) {
    return std::make_shared<Replica>(std::move(model), std::move(comm), config, memory,
                                     communication);
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
    require_divisible(communication, model);
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
