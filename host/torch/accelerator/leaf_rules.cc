#include "accelerator/leaf_rules.h"

#include <fmt/format.h>

#include "tensors/tensor_ops.h"

namespace coupler {

std::optional<Error> problem_of(const std::string& operation, const detail::NestedView& value,
                                const std::function<void(const at::Tensor&)>& check) {
  for (size_t i = 0; i < value.leaves.size(); ++i) {
    const at::Tensor& leaf = value.leaves[i];
    if (!leaf.defined()) continue;
    const auto problem = [&](ErrorCode code, const std::string& text) {
      const std::string path = "value" + detail::describe_leaves(value)[i].path;
      return Error(code, fmt::format("{}: {}: {}", operation, path, text),
                   {.rank = -1, .subject = path, .hint = {}});
    };
    try {
      require_dense(leaf);
      to_db_dtype(leaf.scalar_type());
      if (check) check(leaf);
    } catch (const Error& error) {
      return problem(error.code(), error.what());
    }
  }
  return std::nullopt;
}

}  // namespace coupler
