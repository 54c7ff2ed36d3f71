#include "strategy/model_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace coupler {
namespace {

std::string tensor_text(const at::Tensor& tensor) {
  return fmt::format("{} [{}]{}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.requires_grad() ? "" : ", frozen");
}

}  // namespace

Facts facts_of(const Model& model) {
  Facts facts = {{"the number of parameters of the model", fmt::to_string(model.parameters.size())},
                 {"the number of buffers of the model", fmt::to_string(model.buffers.size())}};
  for (const ModelParameter& parameter : model.parameters) {
    facts.emplace_back(fmt::format("parameter '{}' of the model", parameter.name),
                       tensor_text(parameter.tensor));
  }
  for (const auto& [name, buffer] : model.buffers) {
    facts.emplace_back(fmt::format("buffer '{}' of the model", name), tensor_text(buffer));
  }
  return facts;
}

}  // namespace coupler
