#include "expert_parallel/divide_experts.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "empty_weights/empty_weights.h"
#include "tensor_parallel/divided_parameter.h"

namespace coupler::expert_parallel {
namespace {

// The parameters that hold a model's experts, as indices into Model::parameters.
std::vector<size_t> parameters_of(const strategy::Model& model, const Layers& layers) {
  std::vector<size_t> result;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const at::Tensor& tensor = model.parameters[i].tensor;
    if (std::any_of(layers.begin(), layers.end(), [&](const MixtureOfExpertsImpl* layer) {
          return tensor.is_same(layer->up) || tensor.is_same(layer->down);
        }))
      result.push_back(i);
  }
  return result;
}

void require_divisible(const strategy::ModelParameter& parameter, int ranks) {
  const int64_t experts = parameter.tensor.size(0);
  if (experts % ranks == 0) return;
  fail_config(fmt::format("the {} experts of '{}' cannot be divided over {} ranks", experts,
                          parameter.name, ranks),
              "parallel.expert", "choose a parallel.expert that divides the number of experts");
}

}  // namespace

Layers layers_of(torch::nn::Module& model) {
  Layers result;
  for (const auto& module : model.modules()) {
    if (auto* const layer = dynamic_cast<MixtureOfExpertsImpl*>(module.get()))
      result.push_back(layer);
  }
  return result;
}

void divide(strategy::Model& model, const Layers& layers, const Group& group,
            const Group& averaging) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> parameters = parameters_of(model, layers);
  for (const size_t i : parameters) require_divisible(model.parameters[i], group->size());
  group->verify(strategy::shared_settings_of(model));
  const auto take = [&](strategy::ModelParameter& parameter, const at::Tensor& whole) {
    strategy::ParameterDivision division{
        .sizes = whole.sizes().vec(),
        .elements = sharding::Division::along(whole.size(0), whole[0].numel(), /*blocks=*/1,
                                              group->size(), group->rank())};
    tensor_parallel::take_value(parameter, whole, std::move(division), group);
    parameter.averaging = averaging;
  };
  std::vector<empty_weights::MetaTensor> on_meta;
  std::vector<size_t> indices;  // of on_meta
  for (const size_t i : parameters) {
    strategy::ModelParameter& parameter = model.parameters[i];
    if (parameter.tensor.is_meta()) {
      on_meta.push_back({parameter.name, parameter.tensor});
      indices.push_back(i);
    } else {
      take(parameter, parameter.tensor.detach());
    }
  }
  empty_weights::materialize(on_meta, [&](size_t i, const at::Tensor& value) {
    take(model.parameters[indices[i]], value);
  });
}

}  // namespace coupler::expert_parallel
