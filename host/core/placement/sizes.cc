#include "placement/sizes.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/file_text.h"
#include "base/nearest.h"

namespace coupler {
namespace {

void check_special(const ModuleTree& tree, const SizeRules& rules) {
  for (const auto& [name, type] : rules.special_dtypes) {
    tensor_type(type, fmt::format("special_dtypes['{}']", shown(name)));
    if (std::any_of(tree.tensors.begin(), tree.tensors.end(),
                    [&, &wanted = name](const TreeTensor& t) { return t.name == wanted; }))
      continue;
    std::vector<std::string> names;
    for (const TreeTensor& tensor : tree.tensors) names.push_back(tensor.name);
    const std::string near = nearest_name(name, names);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("special_dtypes: the model has no tensor '{}'{}", shown(name),
                            near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
                {.subject = name, .hint = "name tensors as the state dict does"});
  }
}

// The dtype a tensor is stored in.
const TensorType& kept_type(const TreeTensor& tensor, const SizeRules& rules,
                            const TensorType* dtype) {
  const auto special = rules.special_dtypes.find(tensor.name);
  if (special != rules.special_dtypes.end()) return tensor_type(special->second, tensor.name);
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

TreeSizes::TreeSizes(const ModuleTree& tree, const SizeRules& rules)
    : modules_(tree.modules.size()),
      tensors_(tree.tensors.size()),
      bytes_(tree.tensors.size()),
      owner_(tree.tensors.size()) {
  check_special(tree, rules);
  const TensorType* dtype = rules.dtype.empty() ? nullptr : &tensor_type(rules.dtype, "dtype");
  std::unordered_map<uint64_t, size_t> first[2];  // of parameters, of buffers; by storage
  std::vector<bool> met(tree.modules.size());
  for (const size_t t : parameters_first(tree)) {
    const TreeTensor& tensor = tree.tensors[t];
    const TensorType& type = kept_type(tensor, rules, dtype);
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

}  // namespace coupler
