#include "adapters/target_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "placement/module_tree.h"

namespace coupler::adapters {
namespace {

constexpr const char* kAllLinear = "all-linear";

struct NamedModule {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
};

// All below the model, each once.
std::vector<NamedModule> modules_of(const torch::nn::Module& model) {
  std::vector<NamedModule> result;
  std::set<const void*> seen;
  const std::function<void(const torch::nn::Module&, const std::string&)> walk =
      [&](const torch::nn::Module& parent, const std::string& prefix) {
        for (const auto& item : parent.named_children()) {
          if (!seen.insert(item.value().get()).second) continue;
          if (dynamic_cast<const LoraMatrix*>(item.value().get()) != nullptr) continue;
          result.push_back({prefix + item.key(), item.value()});
          walk(*item.value(), prefix + item.key() + ".");
        }
      };
  walk(model, "");
  return result;
}

// "self_attn.q_proj" is an end of "layers.0.self_attn.q_proj", "proj" is not.
bool ends_name(std::string_view end, std::string_view name) {
  if (end.empty() || end.size() > name.size() || !name.ends_with(end)) return false;
  return end.size() == name.size() || name[name.size() - end.size() - 1] == '.';
}

// How the module's weight is oriented; unset if it is not a linear layer.
std::optional<bool> transposed_weight(const torch::nn::Module& module, const TargetRules& rules) {
  if (placement::names_class(rules.transposed_classes, module.name())) return true;
  const bool linear = dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr ||
                      placement::names_class(rules.linear_classes, module.name());
  return linear ? std::optional(false) : std::nullopt;
}

// The last parts of the names of layers that could be adapted, for messages.
std::string known_layers(const std::vector<NamedModule>& modules, const TargetRules& rules) {
  constexpr size_t kShown = 12;
  std::vector<std::string> ends;
  for (const NamedModule& known : modules) {
    if (!transposed_weight(*known.module, rules)) continue;
    const std::string end = known.name.substr(known.name.rfind('.') + 1);
    // "layers.3" and "layers.4" would be "3" and "4".
    const std::string shown = to_number<int>(end) ? known.name : end;
    if (std::find(ends.begin(), ends.end(), shown) == ends.end()) ends.push_back(shown);
  }
  if (ends.empty()) return "the model has no linear layers, unless linear_classes names a class";
  const size_t shown = std::min(ends.size(), kShown);
  return fmt::format(
      "its linear layers end with {}{}",
      fmt::join(ends.begin(), ends.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < ends.size() ? ", …" : "");
}

std::regex regex_of(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    fail_argument(fmt::format("target_pattern '{}' is not a regular expression: {}",
                              for_message(pattern), error.what()),
                  "target_pattern", "write it as for std::regex: \".*\\\\.(q|v)_proj\"");
  }
}

void check_rules(const TargetRules& rules) {
  if (rules.modules.empty() == rules.pattern.empty()) {
    fail_argument(rules.modules.empty() ? "neither target_modules nor target_pattern is set"
                                        : "both target_modules and target_pattern are set",
                  "target_modules",
                  "name the layers to adapt in one of them; target_modules = {\"all-linear\"} "
                  "takes all");
  }
  const bool all =
      std::find(rules.modules.begin(), rules.modules.end(), kAllLinear) != rules.modules.end();
  if (all && rules.modules.size() > 1) {
    fail_argument("target_modules has other entries than \"all-linear\"", "target_modules",
                  "leave \"all-linear\" alone, or name the layers");
  }
}

// Whether each module is matched. Throws if a rule matches none.
std::vector<bool> matched(const std::vector<NamedModule>& modules, const TargetRules& rules,
                          const std::string& model) {
  std::vector<bool> result(modules.size(), false);
  const auto match = [&](const auto& matches) {
    bool any = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!matches(modules[i])) continue;
      result[i] = any = true;
    }
    return any;
  };
  const auto refuse = [&](const char* what, const std::string& rule) {
    fail_argument(fmt::format("{}: '{}' matches no module of '{}'", what, for_message(rule), model),
                  what,
                  fmt::format("name layers that the model has: {}", known_layers(modules, rules)));
  };
  if (!rules.pattern.empty()) {
    const std::regex regex = regex_of(rules.pattern);
    if (!match([&](const NamedModule& m) { return std::regex_match(m.name, regex); }))
      refuse("target_pattern", rules.pattern);
  }
  for (const std::string& entry : rules.modules) {
    const bool any = match([&](const NamedModule& m) {
      return entry == kAllLinear ? transposed_weight(*m.module, rules).has_value()
                                 : ends_name(entry, m.name);
    });
    if (!any) refuse("target_modules", entry);
  }
  for (const std::string& entry : rules.exclude) {
    bool any = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!ends_name(entry, modules[i].name)) continue;
      result[i] = false;
      any = true;
    }
    if (!any) refuse("exclude_modules", entry);
  }
  return result;
}

[[noreturn]] void refuse_layer(const std::string& name, const std::string& why,
                               const std::string& hint) {
  fail_argument(fmt::format("'{}' cannot get a LoRA product: {}", name, why), name, hint);
}

TargetLayer layer_of(const NamedModule& known, const TargetRules& rules) {
  const auto& [name, module] = known;
  const std::optional<bool> transposed = transposed_weight(*module, rules);
  if (!transposed) {
    refuse_layer(
        name, fmt::format("it is a {}, and only linear layers are supported", module->name()),
        "name other layers, or, if its parameter \"weight\" is a linear layer's, its class "
        "in linear_classes or transposed_classes");
  }
  if (is_adapted(*module)) {
    refuse_layer(name, "it already has one",
                 "call lora once for each layer, or remove() the adapter first");
  }
  const auto own = module->named_parameters(/*recurse=*/false);
  const at::Tensor* const weight = own.find("weight");
  if (weight == nullptr || !weight->defined() || weight->dim() != 2 ||
      !weight->is_floating_point() || weight->numel() < 2) {
    refuse_layer(name, "it has no parameter \"weight\" that is a floating-point matrix",
                 "remove it from the targets");
  }
  return {.name = name, .module = module, .weight = *weight, .transposed = *transposed};
}

// A product with a shared weight could belong to either module.
void refuse_shared(const torch::nn::Module& model, const TargetLayer& layer) {
  for (const auto& item : model.named_parameters()) {
    if (item.key() == layer.name + ".weight" || !item.value().is_same(layer.weight)) continue;
    refuse_layer(layer.name, fmt::format("its weight is also '{}'", item.key()),
                 "leave it out (exclude_modules), or give it a weight of its own");
  }
}

}  // namespace

bool is_adapted(const torch::nn::Module& module) {
  const auto children = module.named_children();
  return children.contains("lora_A") || children.contains("lora_B");
}

std::vector<TargetLayer> target_layers(const torch::nn::Module& model, const TargetRules& rules) {
  check_rules(rules);
  const std::vector<NamedModule> modules = modules_of(model);
  const std::vector<bool> chosen = matched(modules, rules, model.name());
  std::vector<TargetLayer> result;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (!chosen[i]) continue;
    result.push_back(layer_of(modules[i], rules));
    refuse_shared(model, result.back());
  }
  if (result.empty()) {
    fail_argument("exclude_modules leaves no layer", "exclude_modules",
                  fmt::format("leave fewer layers out: {}", known_layers(modules, rules)));
  }
  return result;
}

std::vector<TargetLayer> layers_named(const torch::nn::Module& model,
                                      const std::vector<std::string>& names,
                                      const TargetRules& rules, const std::string& source) {
  const std::vector<NamedModule> modules = modules_of(model);
  std::vector<TargetLayer> result;
  for (const std::string& name : names) {
    const auto found = std::find_if(modules.begin(), modules.end(),
                                    [&](const NamedModule& m) { return m.name == name; });
    if (found == modules.end()) {
      fail_argument(fmt::format("{} is for a layer '{}', which '{}' does not have", source,
                                for_message(name), model.name()),
                    name,
                    fmt::format("use it with the model that it was trained with: {}",
                                known_layers(modules, rules)));
    }
    result.push_back(layer_of(*found, rules));
    refuse_shared(model, result.back());
  }
  return result;
}

}  // namespace coupler::adapters
