#include "fsdp/unit_choice.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "common/model.h"

namespace db::fsdp {
namespace {

std::string_view without_impl(std::string_view type) {
  if (type.size() > 4 && type.ends_with("Impl")) type.remove_suffix(4);
  return type;
}

// "my::Block<torch::nn::Linear>" -> "Block<torch::nn::Linear>"
std::string_view last_component(std::string_view type) {
  const size_t colons = type.substr(0, type.find('<')).rfind("::");
  return colons == std::string_view::npos ? type : type.substr(colons + 2);
}

bool is_type(std::string_view wanted, std::string_view type) {
  return without_impl(wanted) == without_impl(type) ||
         without_impl(wanted) == without_impl(last_component(type));
}

std::vector<std::string_view> module_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ModelModule& module : model.modules)
    if (!module.name.empty()) names.push_back(module.name);
  return names;
}

std::vector<std::string_view> type_names(const Model& model) {
  std::vector<std::string_view> names;
  for (const ModelModule& module : model.modules)
    if (std::find(names.begin(), names.end(), module.type) == names.end())
      names.push_back(module.type);
  return names;
}

Failure mark_types(const Settings& settings, const Model& model, std::vector<bool>* marked) {
  for (const std::string& wanted : settings.unit_types) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      if (!is_type(wanted, model.modules[i].type)) continue;
      (*marked)[i] = found = true;
    }
    if (!found)
      return wrong_option("option 'unit_types': no module of the model is a '" + wanted +
                          "'; its types: " + list_some(type_names(model)));
  }
  return {};
}

Failure mark_names(const Settings& settings, const Model& model, std::vector<bool>* marked) {
  std::vector<const std::string*> matched_by(model.modules.size(), nullptr);
  for (const std::string& pattern : settings.unit_names) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      const ModelModule& module = model.modules[i];
      if (module.name.empty() || !matches(pattern, module.name)) continue;
      if (matched_by[i] != nullptr)
        return wrong_option("option 'unit_names': units overlap: '" + *matched_by[i] + "' and '" +
                            pattern + "' both match the module '" + std::string(module.name) + "'");
      matched_by[i] = &pattern;
      (*marked)[i] = found = true;
    }
    if (!found)
      return wrong_option("option 'unit_names': no module of the model matches '" + pattern +
                          "'; its modules: " + list_some(module_names(model)));
  }
  return {};
}

// The parameters that no pattern of ignore matches, neither directly nor through a parent module.
Failure select(const Settings& settings, const Model& model, std::vector<size_t>* parameters) {
  std::vector<bool> module_ignored(model.modules.size(), false);
  std::vector<bool> ignored(model.parameters.size(), false);
  for (const std::string& pattern : settings.ignore) {
    bool found = false;
    for (size_t i = 0; i < model.modules.size(); ++i) {
      const ModelModule& module = model.modules[i];
      if (module.name.empty() || !matches(pattern, module.name)) continue;
      module_ignored[i] = found = true;
    }
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      if (!matches(pattern, model.parameters[i].name)) continue;
      ignored[i] = found = true;
    }
    if (!found)
      return wrong_option("option 'ignore': no module or parameter of the model matches '" +
                          pattern + "'; its modules: " + list_some(module_names(model)));
  }
  // Parents come before their children.
  for (size_t i = 0; i < model.modules.size(); ++i) {
    const int64_t parent = model.modules[i].parent;
    if (parent >= 0 && module_ignored[static_cast<size_t>(parent)]) module_ignored[i] = true;
  }
  for (size_t i = 0; i < model.parameters.size(); ++i)
    if (!ignored[i] && !module_ignored[model.parameters[i].module]) parameters->push_back(i);
  return {};
}

}  // namespace

Failure choose_units(const Settings& settings, const Model& model, std::vector<UnitDraft>* units) {
  std::vector<size_t> parameters;
  std::vector<bool> marked(model.modules.size(), false);
  Failure failure = select(settings, model, &parameters);
  if (failure.ok() && settings.units == Units::kTypes)
    failure = mark_types(settings, model, &marked);
  if (failure.ok() && settings.units == Units::kNames)
    failure = mark_names(settings, model, &marked);
  if (!failure.ok()) return failure;
  const bool joins = settings.units == Units::kModules || settings.units == Units::kSize;
  std::vector<UnitDraft> drafts =
      joins ? join_small(model, units_by_module(model, parameters), settings.least)
            : units_at(model, parameters, marked);
  *units = split_by_dtype(model, std::move(drafts));
  return {};
}

}  // namespace db::fsdp
