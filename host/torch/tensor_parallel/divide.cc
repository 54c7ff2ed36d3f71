#include "tensor_parallel/divide.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "empty_weights/empty_weights.h"
#include "empty_weights/replay.h"
#include "tensor_parallel/divided_layer.h"
#include "tensor_parallel/divided_parameter.h"
#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {
namespace {

using sharding::PlannedLayers;
using sharding::TensorStyle;

// The name of a class without namespaces and LibTorch's suffix, TorchScript's included.
std::string_view plain_class(std::string_view type) {
  const size_t last = type.find_last_of(":.");
  if (last != std::string_view::npos) type.remove_prefix(last + 1);
  if (type.ends_with("Impl")) type.remove_suffix(4);
  return type;
}

class Divider {
 public:
  Divider(strategy::Model& model, const Plans& plans, const Group& group)
      : model_(model), plans_(plans), group_(group) {
    for (size_t i = 0; i < model.parameters.size(); ++i) by_name_[model.parameters[i].name] = i;
    for (const auto& [alias, name] : model.aliases) {
      const auto found = by_name_.find(name);
      if (found != by_name_.end()) aliases_[alias] = found->second;
    }
  }

  void run() {
    choose();
    require_whole_ties();
    compare();
    take_values();
    install_hooks();
    model_.tensor_comm = group_;
  }

 private:
  void choose();
  void choose_layer(const strategy::ModelModule& module, const PlannedLayers& line);
  void choose_embedding(const std::string& module, const PlannedLayers& line);
  void choose_linear(const strategy::ModelModule& module, const PlannedLayers& line);
  void sum_gradients_of(const std::string& module);
  void divide_parameter(size_t index, int64_t dim, const PlannedLayers& line);
  void require_whole_ties() const;
  void compare();
  void take_values();
  void take_value(size_t parameter, const at::Tensor& whole);
  void install_hooks();

  std::optional<size_t> find(const std::string& name) const {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return found->second;
    const auto alias = aliases_.find(name);
    return alias == aliases_.end() ? std::nullopt : std::optional(alias->second);
  }
  // The matrix of a layer. Throws if it has none.
  size_t matrix_of(const std::string& module, const PlannedLayers& line) const;

  strategy::Model& model_;
  const Plans& plans_;
  const Group& group_;
  std::map<std::string, size_t> by_name_, aliases_;  // indices of parameters
  std::map<size_t, strategy::ParameterDivision> divisions_;
  std::map<size_t, DividedWeight> weights_;  // by the index of the parameter
  std::vector<size_t> summed_;               // parameters whose gradients are
};

void Divider::choose() {
  std::vector<std::string> names;
  for (const strategy::ModelModule& module : model_.modules) names.push_back(module.name);
  std::vector<const PlannedLayers*> chosen(names.size(), nullptr);
  for (const std::vector<PlannedLayers>& plan : plans_) {
    const auto lines = sharding::match_plan(plan, names);
    for (size_t m = 0; m < lines.size(); ++m) {
      if (chosen[m] == nullptr) chosen[m] = lines[m];
    }
  }
  for (size_t m = 0; m < chosen.size(); ++m) {
    if (chosen[m] != nullptr) choose_layer(model_.modules[m], *chosen[m]);
  }
}

void Divider::choose_layer(const strategy::ModelModule& module, const PlannedLayers& line) {
  const TensorStyle style = line.style.style;
  if (style == TensorStyle::kReplicate) return;
  if (style == TensorStyle::kSumGradients) return sum_gradients_of(module.name);
  const bool embedding = plain_class(module.type).ends_with("Embedding");
  if (embedding && style != TensorStyle::kVocab) {
    fail_config(fmt::format("'{}' is a {}, but {} is for linear layers", module.name, module.type,
                            line.text),
                "parallel.tensor_plan", "give it the style vocab");
  }
  if (embedding) return choose_embedding(module.name, line);
  choose_linear(module, line);
}

size_t Divider::matrix_of(const std::string& module, const PlannedLayers& line) const {
  const auto index = find(module + ".weight");
  const bool found = index && model_.parameters[*index].tensor.dim() == 2;
  if (!found) {
    fail_config(
        fmt::format("'{}' cannot be divided ({}): it has no parameter \"weight\" that is a matrix",
                    module, line.text),
        "parallel.tensor_plan",
        "name layers such as torch::nn::Linear and Embedding, not modules that contain them; "
        "quantized and adapted (LoRA) layers cannot be divided");
  }
  if (find(module + ".lora_A.weight") || find(module + ".lora_B.weight")) {
    fail_config(
        fmt::format("'{}' cannot be divided ({}): it has a LoRA adapter", module, line.text),
        "parallel.tensor_plan", "leave it out of the plan, or remove the adapter");
  }
  return *index;
}

void Divider::choose_embedding(const std::string& module, const PlannedLayers& line) {
  const size_t index = matrix_of(module, line);
  divide_parameter(index, 0, line);
  DividedWeight& weight = weights_[index];
  weight.name = weight.lookup_name = module;
}

void Divider::choose_linear(const strategy::ModelModule& module, const PlannedLayers& line) {
  const size_t index = matrix_of(module.name, line);
  const TensorStyle style = line.style.style;
  const bool transposed = plain_class(module.type) == "Conv1D";
  const bool inputs = style == TensorStyle::kRowwise || style == TensorStyle::kRowwiseSplit;
  if (style != TensorStyle::kShared) divide_parameter(index, inputs == transposed ? 0 : 1, line);
  DividedWeight& weight = weights_[index];
  weight.name = weight.product_name = module.name;
  weight.transposed = transposed;
  weight.product = line.style;
  const bool divides_bias = style == TensorStyle::kColwise || style == TensorStyle::kVocab;
  const auto bias = find(module.name + ".bias");
  if (bias && divides_bias) divide_parameter(*bias, 0, line);
}

void Divider::sum_gradients_of(const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  for (const auto& [name, index] : by_name_) {
    const bool direct =
        name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos;
    if (direct && model_.parameters[index].tensor.requires_grad()) summed_.push_back(index);
  }
}

void Divider::divide_parameter(size_t index, int64_t dim, const PlannedLayers& line) {
  const strategy::ModelParameter& parameter = model_.parameters[index];
  auto division = division_of(parameter.name, parameter.tensor.sizes(), dim, line, group_->size(),
                              group_->rank());
  const auto [place, is_new] = divisions_.try_emplace(index, division);
  if (!is_new && place->second.elements != division.elements) {
    fail_config(fmt::format("'{}' belongs to two layers, which the plan divides in different ways "
                            "({})",
                            parameter.name, line.text),
                "parallel.tensor_plan",
                "a tied embedding and head are divided together: vocab, and colwise_gather or "
                "vocab");
  }
}

// A layer that shares a divided weight must be in the plan, too.
void Divider::require_whole_ties() const {
  const auto check = [&](const std::string& name, size_t index) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    if (name.substr(dot == std::string::npos ? 0 : dot + 1) != "weight") return;
    const auto weight = weights_.find(index);
    if (weight == weights_.end() || weight->second.lookup_name == module ||
        weight->second.product_name == module)
      return;
    fail_config(fmt::format("the weight of '{}' is also that of '{}', which the plan does not "
                            "divide",
                            weight->second.name, module),
                "parallel.tensor_plan",
                fmt::format("add a line for '{}': colwise_gather for a head, vocab for an "
                            "embedding",
                            module));
  };
  for (const auto& [index, weight] : weights_) check(model_.parameters[index].name, index);
  for (const auto& [alias, index] : aliases_) check(alias, index);
}

void Divider::compare() {
  comm::SharedSettings settings = strategy::shared_settings_of(model_);
  for (const std::vector<PlannedLayers>& plan : plans_) {
    for (const PlannedLayers& line : plan)
      settings.emplace_back(fmt::format("the tensor plan's line for '{}'", line.pattern),
                            line.text);
  }
  group_->verify(settings);
}

void Divider::take_values() {
  const at::NoGradGuard no_grad;
  std::vector<empty_weights::MetaTensor> on_meta;
  std::vector<at::Tensor> others;  // with values, and not divided
  std::vector<size_t> indices;     // of on_meta's parameters, before the buffers
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const strategy::ModelParameter& parameter = model_.parameters[i];
    if (parameter.tensor.is_meta()) {
      on_meta.push_back({parameter.name, parameter.tensor});
      indices.push_back(i);
    } else if (divisions_.count(i) == 0) {
      others.push_back(parameter.tensor.detach());
    }
  }
  for (const auto& [name, buffer] : model_.buffers) {
    if (buffer.is_meta()) {
      on_meta.push_back({name, buffer});
    } else {
      others.push_back(buffer);
    }
  }
  empty_weights::materialize(on_meta, [&](size_t i, const at::Tensor& value) {
    if (i < indices.size()) return take_value(indices[i], value);
    group_->run(tensors::broadcast_op(value, 0));
    empty_weights::put_value(on_meta[i].tensor, value);
  });
  for (const auto& [index, division] : divisions_) {
    if (!model_.parameters[index].division)
      take_value(index, model_.parameters[index].tensor.detach().contiguous());
  }
  tensors::broadcast_coalesced(*group_, others, 0);
}

void Divider::take_value(size_t parameter, const at::Tensor& whole) {
  strategy::ModelParameter& it = model_.parameters[parameter];
  const at::Tensor dense = whole.contiguous();
  group_->run(tensors::broadcast_op(dense, 0));
  const auto division = divisions_.find(parameter);
  const at::Tensor own = division == divisions_.end() ? dense : part_of(dense, division->second);
  if (it.tensor.is_meta()) {
    it.tensor.set_data(at::empty(own.sizes(), it.tensor.options()));
    empty_weights::put_value(it.tensor, own);
  } else {
    it.tensor.mutable_grad() = at::Tensor();
    empty_weights::set_value(it.tensor, own);
  }
  if (division != divisions_.end()) it.division = division->second;
}

void Divider::install_hooks() {
  for (auto& [index, weight] : weights_) {
    weight.weight = model_.parameters[index].tensor;
    const auto hook = std::make_shared<DividedLayer>(weight, group_);
    residency::add_hook(weight.weight, hook);
    model_.layer_hooks.push_back(hook);
  }
  for (const size_t index : summed_) {
    model_.parameters[index].tensor.register_hook([group = group_](const at::Tensor& gradient) {
      const at::NoGradGuard no_grad;
      const at::Tensor sum = gradient.clone(at::MemoryFormat::Contiguous);
      group->run(tensors::all_reduce_op(sum, DB_SUM));
      return sum;
    });
  }
}

}  // namespace

void divide(strategy::Model& model, const Plans& plans, const Group& group) {
  Divider(model, plans, group).run();
}

void run_scripts_as_written() { torch::jit::getProfilingMode() = false; }

}  // namespace coupler::tensor_parallel
