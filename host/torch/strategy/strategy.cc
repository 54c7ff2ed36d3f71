#include "strategy/strategy.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "config/validate.h"
#include "residency/unit.h"
#include "strategy/comm_hook.h"
#include "strategy/data_parallel.h"
#include "strategy/plan.h"
#include "strategy/sharded_model.h"

namespace coupler::strategy {

void ModelState::place_in_tensor_group(size_t parameter, ParameterPart& part) const {
  const ModelParameter& it = model_.parameters[parameter];
  part.division = it.elements();
  if (model_.tensor_comm == nullptr || it.parts == model_.tensor_comm) return;
  part.copy += part.copies * model_.tensor_comm->rank();
  part.copies *= model_.tensor_comm->size();
}

void Strategy::use_comm_hook(const std::shared_ptr<const NamedHook>& hook) {
  if (hook == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("register_comm_hook: the model '{}' is kept {}, so no bucket of its "
                          "gradients is averaged over ranks",
                          model().name, description().text),
              {.subject = hook->name,
               .hint = "register hooks for models that every rank holds whole or that a backend "
                       "shards"});
}

std::vector<at::Tensor> Strategy::gradients_of(const GradientNorm& which) {
  if (!which.parameters) return flat().gradients();
  std::vector<at::Tensor> result;
  for (const ParameterPart& part : parts()) {
    if (!which.covers(part.parameter) || !part.optimizer_tensor.defined()) continue;
    const at::Tensor& gradient = part.optimizer_tensor.grad();
    if (gradient.defined()) result.push_back(gradient);
  }
  return result;
}

void Strategy::limit_gradients(const GradientNorm& which, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return;
  const at::NoGradGuard no_grad;
  residency::visit_in_groups(gradients_of(which),
                             [&](at::TensorList bunch) { at::_foreach_mul_(bunch, factor); });
}

void Strategy::clip_grad_value(double max_value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : flat().gradients()) gradient.clamp_(-max_value, max_value);
}

size_t Strategy::first_not_finite(const GradientNorm& which) {
  for (const ParameterPart& part : parts()) {
    if (!which.covers(part.parameter) || !part.optimizer_tensor.defined()) continue;
    const at::Tensor& gradient = part.optimizer_tensor.grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) return part.parameter;
  }
  return model().parameters.size();
}

namespace {

// The plan of a backend that sees only the ranks of this replica. It must divide all of it.
ShardPlan plan_of_group(const ShardGroup& group, comm::Communicator& comm, const Model& model) {
  ShardPlan plan = ask_plan(*group.comm, model);
  const int ranks = group.comm->size();
  if (plan.units.empty() || plan.group_size != ranks) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("parallel.shard is {}, but the plan of the backend '{}' shards {}", ranks,
                    comm.backend(),
                    plan.units.empty() ? "nothing"
                                       : fmt::format("among groups of {} ranks", plan.group_size)),
        {.subject = "parallel.shard",
         .hint = fmt::format("let the options of [backend.{}] shard over all ranks that they "
                             "are given: the mesh divides the job into replicas",
                             comm.backend())});
  }
  comm.verify(shared_settings_of(model));  // the plan was compared within the replica only
  plan.group = group.replica;
  plan.copies_group = group.copies_group;
  return plan;
}

}  // namespace

std::shared_ptr<Strategy> make_strategy(Model model, std::shared_ptr<comm::Communicator> comm,
                                        const config::TrainingConfig& config,
                                        const config::MemoryConfig& memory,
                                        const config::CommunicationConfig& communication,
                                        const ShardGroup& group) {
  if (comm == nullptr || !comm->can_shard()) {
    return std::make_shared<DataParallel>(std::move(model), std::move(comm), config, memory,
                                          communication);
  }
  ShardPlan plan =
      group.comm != nullptr ? plan_of_group(group, *comm, model) : ask_plan(*comm, model);
  if (!plan.units.empty()) {
    config::throw_first(config::sharding_conflicts(comm->backend(), memory, communication));
    return ShardedModel::make(std::move(model), std::move(plan), std::move(comm), config,
                              communication);
  }
  config::TrainingConfig replicate = config;
  if (replicate.bucket_cap_mb == 0) {
    replicate.bucket_cap_mb = static_cast<double>(plan.reduce_bytes) / (1 << 20);
  }
  return std::make_shared<DataParallel>(std::move(model), std::move(comm), replicate, memory,
                                        communication);
}

}  // namespace coupler::strategy
