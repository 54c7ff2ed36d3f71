#include "sharding/model_division.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <deque>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"

namespace coupler::sharding {
namespace {

// The name of a class without namespaces and LibTorch's suffix, TorchScript's included.
std::string_view plain_class(std::string_view type) {
  const size_t last = type.find_last_of(":.");
  if (last != std::string_view::npos) type.remove_prefix(last + 1);
  if (type.ends_with("Impl")) type.remove_suffix(4);
  return type;
}

// Throws if the dimension does not divide.
ParameterDivision division_of(const PlannedModel::Parameter& parameter, int64_t dim,
                              const PlannedLayers& line, int ranks, int rank) {
  const std::vector<int64_t>& sizes = parameter.sizes;
  const int64_t size = sizes[static_cast<size_t>(dim)];
  const auto& [style, blocks, multiple] = line.style;
  if (size % (blocks * ranks * multiple) != 0) {
    std::string parts = fmt::format("{} ranks", ranks);
    if (blocks > 1) parts += fmt::format(" in each of {} blocks", blocks);
    if (multiple > 1) parts += fmt::format(" in multiples of {}", multiple);
    fail_config(fmt::format("'{}' is [{}], and the {} of dimension {} cannot be divided over {} "
                            "({})",
                            parameter.name, fmt::join(sizes, ", "), size, dim, parts, line.text),
                "parallel.tensor",
                "choose a parallel.tensor that divides it, or leave the layer out of the plan");
  }
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < sizes.size(); ++d) inner *= sizes[d];
  return {.sizes = sizes,
          .dim = dim,
          .blocks = blocks,
          .elements = Division::along(size, inner, blocks, ranks, rank)};
}

// How A or B of a LoRA product is divided if its layer is: B as the layer's outputs, A as its
// inputs. What is left whole sees what the layer sees.
LayerStyle style_of_adapter(const LayerStyle& layer, bool is_a) {
  const bool inputs =
      layer.style == TensorStyle::kRowwise || layer.style == TensorStyle::kRowwiseSplit;
  const bool as_layer = layer.style == TensorStyle::kReplicate ||
                        layer.style == TensorStyle::kSumGradients || inputs == is_a;
  return as_layer ? layer : LayerStyle{TensorStyle::kSequence};
}

class ModelDivider {
 public:
  ModelDivider(const PlannedModel& model, const TensorPlans& plans, int ranks, int rank,
               bool sequence)
      : model_(model), plans_(plans), ranks_(ranks), rank_(rank), sequence_(sequence) {
    for (size_t i = 0; i < model.parameters.size(); ++i) by_name_[model.parameters[i].name] = i;
    for (const auto& [alias, name] : model.aliases) {
      const auto found = by_name_.find(name);
      if (found != by_name_.end()) aliases_[alias] = found->second;
    }
  }

  ModelDivision run() {
    choose();
    // Before ties: here both layers are in the plan.
    for (const size_t index : summed_) {
      const auto weight = result_.weights.find(index);
      const bool lookup = weight != result_.weights.end() && !weight->second.lookup_name.empty();
      if (lookup) refuse_two_ways(index, fmt::format("'{}'", weight->second.lookup_name));
    }
    require_whole_ties();
    result_.summed.assign(summed_.begin(), summed_.end());
    return std::move(result_);
  }

 private:
  void choose();
  void choose_adapters(const std::vector<std::string>& modules,
                       std::vector<const PlannedLayers*>& chosen);
  void choose_layer(const PlannedModel::Module& module, const PlannedLayers& line);
  void choose_embedding(const std::string& module, const PlannedLayers& line);
  void choose_linear(const PlannedModel::Module& module, const PlannedLayers& line);
  void require_named(const std::vector<std::string>& modules,
                     const std::vector<const PlannedLayers*>& chosen) const;
  void require_norm_of_tokens(const PlannedModel::Module& module, const PlannedLayers& line) const;
  void sum_gradients_of(const std::string& module);
  void sum_gradient_of(size_t index) {
    if (model_.parameters[index].trains) summed_.insert(index);
  }
  void divide_parameter(size_t index, int64_t dim, const PlannedLayers& line);
  WeightUse& use_of(size_t index, bool divided, const PlannedLayers& line);
  [[noreturn]] void refuse_two_ways(size_t index, const std::string& line) const;
  void require_whole_ties() const;

  std::optional<size_t> find(const std::string& name) const {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return found->second;
    const auto alias = aliases_.find(name);
    return alias == aliases_.end() ? std::nullopt : std::optional(alias->second);
  }
  // The matrix of a layer. Throws if it has none.
  size_t matrix_of(const std::string& module, const PlannedLayers& line) const;

  const PlannedModel& model_;
  const TensorPlans& plans_;
  const int ranks_, rank_;
  const bool sequence_;
  std::map<std::string, size_t> by_name_, aliases_;  // indices of parameters
  std::deque<PlannedLayers> adapters_;               // lines for A and B of LoRA
  std::set<size_t> summed_;
  ModelDivision result_;
};

void ModelDivider::choose() {
  std::vector<std::string> names;
  for (const PlannedModel::Module& module : model_.modules) names.push_back(module.name);
  std::vector<const PlannedLayers*> chosen(names.size(), nullptr);
  for (const std::vector<PlannedLayers>& plan : plans_) {
    const auto lines = match_plan(plan, names);
    for (size_t m = 0; m < lines.size(); ++m) {
      if (chosen[m] == nullptr) chosen[m] = lines[m];
    }
  }
  choose_adapters(names, chosen);
  if (sequence_) require_named(names, chosen);
  for (size_t m = 0; m < chosen.size(); ++m) {
    if (chosen[m] != nullptr) choose_layer(model_.modules[m], *chosen[m]);
  }
}

// The products of LoRA follow their layers.
void ModelDivider::choose_adapters(const std::vector<std::string>& modules,
                                   std::vector<const PlannedLayers*>& chosen) {
  std::map<std::string, const PlannedLayers*> lines;
  for (size_t m = 0; m < modules.size(); ++m) lines[modules[m]] = chosen[m];
  for (size_t m = 0; m < modules.size(); ++m) {
    const size_t dot = modules[m].rfind('.');
    if (dot == std::string::npos || chosen[m] != nullptr) continue;
    const std::string_view name = std::string_view(modules[m]).substr(dot + 1);
    const auto layer = lines.find(modules[m].substr(0, dot));
    if ((name != "lora_A" && name != "lora_B") || layer == lines.end() || layer->second == nullptr)
      continue;
    adapters_.push_back({.pattern = modules[m],
                         .style = style_of_adapter(layer->second->style, name == "lora_A"),
                         .text = layer->second->text});
    chosen[m] = &adapters_.back();
  }
}

void ModelDivider::require_named(const std::vector<std::string>& modules,
                                 const std::vector<const PlannedLayers*>& chosen) const {
  std::set<std::string> named;
  for (size_t m = 0; m < modules.size(); ++m) {
    if (chosen[m] != nullptr) named.insert(modules[m]);
  }
  const auto check = [&](const std::string& name, size_t index) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    if (!model_.parameters[index].trains || named.count(module) != 0) return;
    fail_config(fmt::format("the sequence is divided over {} ranks, but no line of the tensor plan "
                            "says whether '{}' sees a part of it: it has the parameter '{}'",
                            ranks_, module, name),
                "parallel.sequence",
                fmt::format("add a line for '{}': sequence for norms and others between divided "
                            "layers, replicate if it sees whole sequences, or set it to false",
                            module));
  };
  for (const auto& [name, index] : by_name_) check(name, index);
  for (const auto& [name, index] : aliases_) check(name, index);
}

void ModelDivider::choose_layer(const PlannedModel::Module& module, const PlannedLayers& line) {
  const TensorStyle style = line.style.style;
  const bool by_sequence = style == TensorStyle::kSequence || style == TensorStyle::kGatherSequence;
  if (style == TensorStyle::kReplicate || (by_sequence && !sequence_)) return;
  if (style == TensorStyle::kSequence) require_norm_of_tokens(module, line);
  if (style == TensorStyle::kSumGradients) return sum_gradients_of(module.name);
  const bool embedding = plain_class(module.type).ends_with("Embedding");
  if (style == TensorStyle::kSequence && !embedding) return sum_gradients_of(module.name);
  if (embedding && style != TensorStyle::kVocab && style != TensorStyle::kSequence) {
    fail_config(fmt::format("'{}' is a {}, but {} is for linear layers", module.name, module.type,
                            line.text),
                "parallel.tensor_plan", "give it the style vocab, or sequence");
  }
  if (embedding) return choose_embedding(module.name, line);
  choose_linear(module, line);
}

// Statistics of a part of the tokens would differ from rank to rank.
void ModelDivider::require_norm_of_tokens(const PlannedModel::Module& module,
                                          const PlannedLayers& line) const {
  if (!plain_class(module.type).starts_with("BatchNorm")) return;
  fail_config(fmt::format("'{}' is a {}, whose statistics are those of all tokens, but each of {} "
                          "ranks has a part of them ({})",
                          module.name, module.type, ranks_, line.text),
              "parallel.tensor_plan",
              "use a norm of each token, such as LayerNorm, or set parallel.sequence to false");
}

size_t ModelDivider::matrix_of(const std::string& module, const PlannedLayers& line) const {
  const auto index = find(module + ".weight");
  const bool found = index && model_.parameters[*index].sizes.size() == 2;
  if (!found) {
    fail_config(
        fmt::format("'{}' cannot be divided ({}): it has no parameter \"weight\" that is a matrix",
                    module, line.text),
        "parallel.tensor_plan",
        "name layers such as torch::nn::Linear and Embedding, not modules that contain them; "
        "quantized layers cannot be divided");
  }
  return *index;
}

void ModelDivider::choose_embedding(const std::string& module, const PlannedLayers& line) {
  const size_t index = matrix_of(module, line);
  const bool divided = line.style.style == TensorStyle::kVocab;
  if (divided) divide_parameter(index, 0, line);
  WeightUse& weight = use_of(index, divided, line);
  weight.name = weight.lookup_name = module;
}

void ModelDivider::choose_linear(const PlannedModel::Module& module, const PlannedLayers& line) {
  const size_t index = matrix_of(module.name, line);
  const TensorStyle style = line.style.style;
  const bool transposed = plain_class(module.type) == "Conv1D";
  const bool inputs = style == TensorStyle::kRowwise || style == TensorStyle::kRowwiseSplit;
  const bool divided = style != TensorStyle::kShared && style != TensorStyle::kGatherSequence;
  if (divided) divide_parameter(index, inputs == transposed ? 0 : 1, line);
  WeightUse& weight = use_of(index, divided, line);
  weight.name = weight.product_name = module.name;
  weight.product_line = line.text;
  weight.transposed = transposed;
  weight.product = line.style;
  const bool divides_bias = style == TensorStyle::kColwise || style == TensorStyle::kVocab;
  const auto bias = find(module.name + ".bias");
  if (bias && divides_bias) divide_parameter(*bias, 0, line);
  if (!sequence_) return;
  // A rank adds the bias to its part of the sequence, or uses the results with its own heads.
  const bool shared = style == TensorStyle::kShared;
  if (shared) sum_gradient_of(index);
  if (bias && (inputs || shared)) sum_gradient_of(*bias);
}

void ModelDivider::sum_gradients_of(const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  for (const auto* names : {&by_name_, &aliases_}) {
    for (const auto& [name, index] : *names) {
      const bool direct =
          name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos;
      if (direct) sum_gradient_of(index);
    }
  }
}

// Layers that share a weight use the same part of it.
WeightUse& ModelDivider::use_of(size_t index, bool divided, const PlannedLayers& line) {
  const auto [place, is_new] = result_.weights.try_emplace(index);
  if (!is_new && place->second.divided != divided) refuse_two_ways(index, line.text);
  place->second.divided = divided;
  return place->second;
}

void ModelDivider::refuse_two_ways(size_t index, const std::string& line) const {
  fail_config(fmt::format("'{}' belongs to two layers, which the plan divides in different ways "
                          "({})",
                          model_.parameters[index].name, line),
              "parallel.tensor_plan",
              "a tied embedding and head are divided together: vocab, and colwise_gather or vocab; "
              "or neither is: sequence, and gather_sequence");
}

void ModelDivider::divide_parameter(size_t index, int64_t dim, const PlannedLayers& line) {
  const PlannedModel::Parameter& parameter = model_.parameters[index];
  const ParameterDivision division = division_of(parameter, dim, line, ranks_, rank_);
  const auto [place, is_new] = result_.parameters.try_emplace(index, division);
  if (!is_new && place->second.elements != division.elements) refuse_two_ways(index, line.text);
}

// A layer that shares a divided weight must be in the plan, too.
void ModelDivider::require_whole_ties() const {
  const auto check = [&](const std::string& name, size_t index) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    if (name.substr(dot == std::string::npos ? 0 : dot + 1) != "weight") return;
    const auto weight = result_.weights.find(index);
    if (weight == result_.weights.end() || weight->second.lookup_name == module ||
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
  for (const auto& [index, weight] : result_.weights) check(model_.parameters[index].name, index);
  for (const auto& [alias, index] : aliases_) check(alias, index);
}

}  // namespace

ModelDivision divide_model(const PlannedModel& model, const TensorPlans& plans, int ranks, int rank,
                           bool sequence) {
  return ModelDivider(model, plans, ranks, rank, sequence).run();
}

}  // namespace coupler::sharding
