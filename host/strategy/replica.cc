#include "strategy/replica.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "comm/tensor_ops.h"

namespace coupler {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Named tensors in order of registration; a tied one (registered twice) only once.
NamedTensors unique_named(const torch::OrderedDict<std::string, at::Tensor>& named) {
  NamedTensors result;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

void require_host(const std::string& name, const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("'{}' is on {}, but the backend in use works on host memory", name,
                          tensor.device().str()),
              {.subject = name, .hint = "call model->to(accelerator.device()) before prepare"});
}

}  // namespace

Replica::Replica(torch::nn::Module& module, std::shared_ptr<Communicator> comm,
                 const TrainingConfig& config)
    : module_(&module), keep_(module.weak_from_this().lock()) {
  const NamedTensors parameters = unique_named(module.named_parameters());
  const NamedTensors buffers = unique_named(module.named_buffers());
  NamedTensors trainable;
  std::vector<at::Tensor> frozen, buffer_tensors;
  for (const auto& [name, tensor] : parameters) {
    require_host(name, tensor);
    if (tensor.requires_grad()) {
      trainable.emplace_back(name, tensor);
    } else {
      frozen.push_back(tensor);
    }
  }
  for (const auto& [name, tensor] : buffers) {
    require_host(name, tensor);
    buffer_tensors.push_back(tensor);
  }
  if (parameters.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the model '{}' has no parameters: there is nothing to prepare", module.name()),
        {.subject = module.name(),
         .hint = "register them with register_module and register_parameter"});
  }
  const bool several = comm != nullptr && comm->size() > 1;
  flat_ = std::make_unique<FlatParameters>(trainable, several);
  if (!several) return;

  for (const FlatGroup& group : flat_->groups()) comm->run(broadcast_op(group.parameters, 0));
  std::vector<at::Tensor> rest = frozen;
  rest.insert(rest.end(), buffer_tensors.begin(), buffer_tensors.end());
  broadcast_coalesced(*comm, rest, 0);
  if (trainable.empty()) return;
  reducer_ = std::make_shared<GradientReducer>(
      *flat_, std::move(comm),
      config.broadcast_buffers ? buffer_tensors : std::vector<at::Tensor>{}, config.bucket_cap_mb);
  reducer_->install();
}

double Replica::clip_grad_norm(double max_norm) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  bool whole = reducer_ != nullptr;
  for (const FlatSlot& slot : flat_->slots()) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (gradient.defined()) gradients.push_back(gradient);
    // What was only accumulated (no_sync) is not in flat memory yet.
    whole = whole && gradient.is_same(slot.gradient);
  }
  if (gradients.empty()) return 0;
  // Whole buffers where every parameter has its gradient there (padding is zero), else one by one.
  if (whole) {
    gradients.clear();
    for (const FlatGroup& group : flat_->groups()) {
      const FlatSlot& last = flat_->slots()[group.end_slot - 1];
      gradients.push_back(group.gradients.narrow(0, 0, last.offset + last.numel));
    }
  }
  double sum = 0;
  for (const at::Tensor& norm : at::_foreach_norm(gradients)) {
    const double value = norm.item<double>();
    sum += value * value;
  }
  const double norm = std::sqrt(sum);
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) at::_foreach_mul_(gradients, factor);
  return norm;
}

}  // namespace coupler
