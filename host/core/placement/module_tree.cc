#include "placement/module_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace coupler::placement {
namespace {

constexpr std::array<TensorType, 21> kTypes = {{{"float32", 32, 4, true},
                                                {"float64", 64, 8, true},
                                                {"float16", 16, 2, true},
                                                {"bfloat16", 16, 2, true},
                                                {"float8_e4m3fn", 8, 1, true},
                                                {"float8_e5m2", 8, 1, true},
                                                {"float8_e4m3fnuz", 8, 1, true},
                                                {"float8_e5m2fnuz", 8, 1, true},
                                                {"float8_e8m0fnu", 8, 1, true},
                                                {"complex32", 32, 4, true},
                                                {"complex64", 64, 8, true},
                                                {"complex128", 128, 16, true},
                                                {"int4", 4, 1, false},
                                                {"int8", 8, 1, false},
                                                {"int16", 16, 2, false},
                                                {"int32", 32, 4, false},
                                                {"int64", 64, 8, false},
                                                {"uint8", 8, 1, false},
                                                {"uint16", 16, 2, false},
                                                {"uint32", 32, 4, false},
                                                {"bool", 1, 1, false}}};

}  // namespace

const TensorType& tensor_type(std::string_view name, const std::string& what) {
  std::string_view rest = name;
  if (rest.starts_with("torch.")) rest.remove_prefix(6);
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TensorType& t) { return t.name == rest; });
  if (type != kTypes.end()) return *type;
  std::vector<std::string> names;
  names.reserve(kTypes.size());
  for (const TensorType& known : kTypes) names.emplace_back(known.name);
  fail_argument(
      fmt::format("{}: unknown dtype '{}'{}", what, for_message(name), did_you_mean(rest, names)),
      what, "give a dtype such as float32, float16, bfloat16 or int8");
}

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

namespace {

void check_special(const ModuleTree& tree, const DeviceMapOptions& options) {
  for (const auto& [name, type] : options.special_dtypes) {
    tensor_type(type, fmt::format("special_dtypes['{}']", for_message(name)));
    if (std::any_of(tree.tensors.begin(), tree.tensors.end(),
                    [&, &wanted = name](const TreeTensor& t) { return t.name == wanted; }))
      continue;
    std::vector<std::string> names;
    for (const TreeTensor& tensor : tree.tensors) names.push_back(tensor.name);
    fail_argument(fmt::format("special_dtypes: the model has no tensor '{}'{}", for_message(name),
                              did_you_mean(name, names)),
                  name, "name tensors as the state dict does");
  }
}

// The dtype a tensor is stored in.
const TensorType& kept_type(const TreeTensor& tensor, const DeviceMapOptions& options,
                            const TensorType* dtype) {
  const auto special = options.special_dtypes.find(tensor.name);
  if (special != options.special_dtypes.end()) return tensor_type(special->second, tensor.name);
  return dtype != nullptr && tensor.type->converts && dtype->bits < tensor.type->bits
             ? *dtype
             : *tensor.type;
}

// Tensors in Accelerate's order: parameters of all modules, then buffers.
std::vector<size_t> parameters_first(const ModuleTree& tree) {
  std::vector<size_t> result;
  for (const bool parameters : {true, false})
    for (const TreeModule& module : tree.modules)
      std::copy_if(module.tensors.begin(), module.tensors.end(), std::back_inserter(result),
                   [&](size_t t) { return tree.tensors[t].parameter() == parameters; });
  return result;
}

}  // namespace

TreeSizes::TreeSizes(const ModuleTree& tree, const DeviceMapOptions& options)
    : modules_(tree.modules.size()),
      tensors_(tree.tensors.size()),
      bytes_(tree.tensors.size()),
      owner_(tree.tensors.size()) {
  check_special(tree, options);
  const TensorType* dtype = options.dtype.empty() ? nullptr : &tensor_type(options.dtype, "dtype");
  std::unordered_map<uint64_t, size_t> first[2];  // of parameters, of buffers; by storage
  std::vector<bool> met(tree.modules.size());
  for (const size_t t : parameters_first(tree)) {
    const TreeTensor& tensor = tree.tensors[t];
    const TensorType& type = kept_type(tensor, options, dtype);
    bytes_[t] = tensor.elements * type.bytes / (type.bits == 4 ? 2 : 1);
    const auto [owner, fresh] = first[tensor.parameter() ? 0 : 1].try_emplace(tensor.storage, t);
    owner_[t] = owner->second;
    if (!fresh) continue;
    tensors_[t] = static_cast<int64_t>(tensor.elements * type.bits);
    std::vector<TreeItem> fresh_modules;
    for (size_t m = tensor.module;; m = tree.modules[m].parent) {
      modules_[m] += tensors_[t];
      if (!met[m]) fresh_modules.push_back({true, m});
      met[m] = true;
      if (m == 0) break;
    }
    order_.insert(order_.end(), fresh_modules.rbegin(), fresh_modules.rend());
    order_.push_back({false, t});
  }
}

namespace {

std::vector<TreeItem> own_tensors(const ModuleTree& tree, size_t module, bool parameters) {
  std::vector<TreeItem> result;
  std::set<uint64_t> met;
  for (const size_t t : tree.modules[module].tensors)
    if (tree.tensors[t].parameter() == parameters && met.insert(tree.tensors[t].storage).second)
      result.push_back({false, t});
  return result;
}

void append(std::vector<TreeItem>& to, const std::vector<TreeItem>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// A module's children, each object once, as Python's named_children lists them.
std::vector<TreeItem> distinct_children(const ModuleTree& tree, size_t module) {
  std::vector<TreeItem> result;
  std::set<uint64_t> met;
  for (const size_t child : tree.modules[module].children)
    if (met.insert(tree.modules[child].object).second) result.push_back({true, child});
  return result;
}

}  // namespace

std::vector<TreeItem> divided(const ModuleTree& tree, const std::vector<std::string>& no_split,
                              TreeItem item) {
  if (!item.is_module || names_class(no_split, tree.modules[item.index].type)) return {};
  const std::vector<TreeItem> children = distinct_children(tree, item.index);
  if (children.empty()) return {};
  std::vector<TreeItem> result = own_tensors(tree, item.index, true);
  append(result, children);
  return result;
}

std::vector<TreeItem> top_level(const ModuleTree& tree) {
  std::vector<TreeItem> result = own_tensors(tree, 0, true);
  append(result, distinct_children(tree, 0));
  append(result, own_tensors(tree, 0, false));
  return result;
}

LargestLayers largest_layers(const ModuleTree& tree, const TreeSizes& sizes,
                             const std::vector<std::string>& no_split,
                             const std::deque<TreeItem>& items) {
  LargestLayers largest;
  std::vector<TreeItem> waiting(items.rbegin(), items.rend());
  while (!waiting.empty()) {
    const TreeItem item = waiting.back();
    waiting.pop_back();
    const bool whole = !item.is_module || names_class(no_split, tree.modules[item.index].type);
    const auto children = whole ? std::vector<TreeItem>() : distinct_children(tree, item.index);
    if (!children.empty()) {
      waiting.insert(waiting.end(), children.rbegin(), children.rend());
      continue;
    }
    const int64_t bits = sizes.bits(item);
    if (bits > largest.bits) largest = {bits, {}};
    if (bits == largest.bits) largest.layers.push_back(item);
  }
  return largest;
}

std::vector<std::vector<size_t>> tied_groups(const ModuleTree& tree, const TreeSizes& sizes) {
  std::map<size_t, std::vector<size_t>> groups;  // by the first registered
  for (size_t t = 0; t < tree.tensors.size(); ++t)
    if (tree.tensors[t].parameter()) groups[sizes.owner(t)].push_back(t);
  std::vector<std::vector<size_t>> result;
  for (auto& [owner, group] : groups) {
    if (group.size() == 1) continue;
    std::sort(group.begin(), group.end(),
              [&](size_t a, size_t b) { return tree.tensors[a].name < tree.tensors[b].name; });
    result.push_back(std::move(group));
  }
  return result;
}

}  // namespace coupler::placement
