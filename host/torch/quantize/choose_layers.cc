#include "quantize/choose_layers.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/text.h"
#include "placement/module_tree.h"

namespace coupler::quantization {
namespace {

constexpr int64_t kGroups[] = {32, 64, 128, 256};

void check(const QuantizeOptions& options) {
  if (options.bits != 8 && options.bits != 4)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("quantize.bits is {}, but must be 8 or 4", options.bits),
                {.subject = "bits", .hint = "use 8 for little loss, 4 for half the memory"});
  if (options.bits == 8) return;
  if (std::find(std::begin(kGroups), std::end(kGroups), options.group_size) == std::end(kGroups))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("quantize.group_size is {}, but must be 32, 64, 128 or 256",
                            options.group_size),
                {.subject = "group_size",
                 .hint = "use 64, the default; smaller groups lose less but take more memory"});
}

// "lm_head" is a part of "lm_head.weight", "0.mlp" of "layers.0.mlp.up.weight".
bool is_part(std::string_view part, const std::string& name) {
  return !part.empty() && ("." + name + ".").find(fmt::format(".{}.", part)) != std::string::npos;
}

enum class LayerKind { kOther, kLinear, kTransposed };

LayerKind layer_kind(const strategy::ModelModule& module, const QuantizeOptions& options) {
  if (placement::names_class(options.transposed_classes, module.type))
    return LayerKind::kTransposed;
  const bool linear = placement::names_class({"torch::nn::Linear"}, module.type) ||
                      placement::names_class(options.linear_classes, module.type);
  return linear ? LayerKind::kLinear : LayerKind::kOther;
}

// A tied weight is one parameter: all modules that share it must be linear layers of the same kind.
bool is_shared_otherwise(const strategy::Model& model, const std::string& name, LayerKind kind,
                         const QuantizeOptions& options) {
  return std::any_of(model.aliases.begin(), model.aliases.end(), [&](const auto& alias) {
    if (alias.second != name) return false;
    const size_t dot = alias.first.rfind('.');
    const std::string path = dot == std::string::npos ? "" : alias.first.substr(0, dot);
    const auto module =
        std::find_if(model.modules.begin(), model.modules.end(),
                     [&](const strategy::ModelModule& other) { return other.name == path; });
    return module == model.modules.end() || layer_kind(*module, options) != kind;
  });
}

void check_weight(const strategy::ModelParameter& weight, const std::string& type) {
  if (weight.tensor.dim() == 2 && weight.tensor.is_floating_point() && weight.tensor.numel() > 0)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' of a {} is {} of [{}]: only floating-point matrices can be "
                          "quantized",
                          weight.name, type, c10::getDtypeNames(weight.tensor.scalar_type()).first,
                          fmt::join(weight.tensor.sizes(), ", ")),
              {.subject = weight.name,
               .hint = "remove its class from linear_classes, or add the weight to quantize.skip"});
}

void check_groups(const strategy::Model& model, const std::vector<ChosenLayer>& layers,
                  int64_t group) {
  const auto not_divided_by = [&](int64_t size) {
    std::vector<const ChosenLayer*> result;
    for (const ChosenLayer& layer : layers) {
      if (layer.layout.columns % size != 0) result.push_back(&layer);
    }
    return result;
  };
  const auto wrong = not_divided_by(group);
  if (wrong.empty()) return;
  std::vector<int64_t> divide_all;
  for (const int64_t other : kGroups) {
    if (not_divided_by(other).empty()) divide_all.push_back(other);
  }
  const std::string& name = model.parameters[wrong[0]->parameter].name;
  const std::string several =
      wrong.size() == 1 ? "" : fmt::format(" (and {} more layers)", wrong.size() - 1);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' has {} inputs, which quantize.group_size = {} does not divide{}", name,
                  wrong[0]->layout.columns, group, several),
      {.subject = name,
       .hint = divide_all.empty()
                   ? fmt::format("no group size divides all layers: leave these in full precision "
                                 "with quantize.skip = {{\"{}\"{}}}, or use 8 bits",
                                 name, wrong.size() == 1 ? "" : ", …")
                   : fmt::format("use {}", fmt::join(divide_all, ", or "))});
}

}  // namespace

std::vector<ChosenLayer> choose_layers(const strategy::Model& model,
                                       const QuantizeOptions& options) {
  check(options);
  std::vector<ChosenLayer> layers;
  std::vector<bool> met(options.skip.size());
  bool any = false;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const strategy::ModelParameter& weight = model.parameters[i];
    const strategy::ModelModule& module = model.modules[weight.module];
    const LayerKind kind = layer_kind(module, options);
    const bool named = weight.name == "weight" || weight.name.ends_with(".weight");
    if (kind == LayerKind::kOther || !named) continue;
    if (is_shared_otherwise(model, weight.name, kind, options)) continue;
    any = true;
    bool skipped = false;
    for (size_t s = 0; s < options.skip.size(); ++s) {
      if (!is_part(options.skip[s], weight.name)) continue;
      met[s] = skipped = true;
    }
    if (skipped) continue;
    check_weight(weight, module.type);
    const bool transposed = kind == LayerKind::kTransposed;
    ChosenLayer layer{.parameter = i, .transposed = transposed, .layout = {}};
    layer.layout.bits = options.bits;
    layer.layout.rows = weight.tensor.size(transposed ? 1 : 0);
    layer.layout.columns = weight.tensor.size(transposed ? 0 : 1);
    layer.layout.group = options.bits == 4 ? options.group_size : 0;
    layers.push_back(layer);
  }
  for (size_t s = 0; s < met.size(); ++s) {
    if (met[s]) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("quantize.skip: '{}' matches no linear layer", for_message(options.skip[s])),
        {.subject = options.skip[s],
         .hint = "name a part of a weight's path, such as \"lm_head\" or \"layers.0.mlp\"; "
                 "embeddings and norms are never quantized"});
  }
  if (layers.empty())
    throw Error(ErrorCode::kInvalidArgument,
                any ? fmt::format("quantize.skip names every linear layer of '{}'", model.name)
                    : fmt::format("'{}' has no linear layers to quantize", model.name),
                {.subject = model.name,
                 .hint = any ? "leave quantize unset, or name fewer layers"
                             : "name the classes of its linear layers in quantize.linear_classes, "
                               "or leave quantize unset"});
  if (options.bits == 4) check_groups(model, layers, options.group_size);
  return layers;
}

}  // namespace coupler::quantization
