#include "placement/module_tree.h"

#include <algorithm>
#include <utility>

namespace coupler {
namespace {

std::string_view without_namespace(std::string_view type) {
  const size_t at = type.substr(0, type.find('<')).rfind("::");
  return at == std::string_view::npos ? type : type.substr(at + 2);
}

std::string_view without_suffix(std::string_view type) {
  constexpr std::string_view kSuffix = "Impl";
  if (type.size() > kSuffix.size() && type.ends_with(kSuffix)) type.remove_suffix(kSuffix.size());
  return type;
}

std::string below(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

}  // namespace

ModuleTree::ModuleTree(std::string root_type) {
  modules.push_back({.type = std::move(root_type), .end = 1});
}

size_t ModuleTree::add_module(size_t parent, const std::string& name, std::string type,
                              uint64_t object) {
  const size_t index = modules.size();
  modules.push_back({.name = below(modules[parent].name, name),
                     .type = std::move(type),
                     .object = object,
                     .parent = parent,
                     .end = index + 1});
  modules[parent].children.push_back(index);
  for (size_t above = parent; above != 0; above = modules[above].parent)
    modules[above].end = index + 1;
  modules.front().end = index + 1;
  return index;
}

void ModuleTree::add_tensor(size_t module, TreeTensor tensor) {
  tensor.name = below(modules[module].name, tensor.name);
  tensor.module = module;
  modules[module].tensors.push_back(tensors.size());
  tensors.push_back(std::move(tensor));
}

const std::string& ModuleTree::name(TreeItem item) const {
  return item.is_module ? modules[item.index].name : tensors[item.index].name;
}

bool ModuleTree::holds(TreeItem item, size_t tensor) const {
  if (!item.is_module) return item.index == tensor;
  const size_t module = tensors[tensor].module;
  return item.index <= module && module < modules[item.index].end;
}

bool ModuleTree::holds(TreeItem a, TreeItem b) const {
  if (!b.is_module) return holds(a, b.index);
  return a.is_module && a.index <= b.index && b.index < modules[a.index].end;
}

bool names_class(const std::vector<std::string>& list, std::string_view type) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& name) {
    return name == type || name == without_namespace(type) || name == without_suffix(type) ||
           name == without_suffix(without_namespace(type));
  });
}

}  // namespace coupler
