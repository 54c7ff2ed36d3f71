#include <ATen/ops/cat.h>
#include <coupler/nested_ops.h>
#include <fmt/format.h>

#include "base/fail.h"

namespace coupler::detail {
namespace {

// A structure as concatenate compares it.
struct Described {
  std::vector<DescribedNode> nodes;
  std::vector<LeafDescription> leaves;
};

void require_same_structure(const Described& first, const Described& other, size_t place) {
  const auto what = [](const DescribedNode& node) {
    return node.leaf < 0 ? node.what : std::string("a tensor");
  };
  // The first difference is in a node that both have, since a node determines what follows it.
  for (size_t n = 0; n < std::min(first.nodes.size(), other.nodes.size()); ++n) {
    if (first.nodes[n].what == other.nodes[n].what) continue;
    fail_argument(
        fmt::format("concatenate: value{} is {} in element 0 and {} in element {}",
                    first.nodes[n].path, what(first.nodes[n]), what(other.nodes[n]), place),
        first.nodes[n].path, "all elements need the same structure");
  }
}

void require_joinable(const LeafDescription& first, const LeafDescription& other, int64_t dim,
                      size_t place) {
  bool fits = first.dtype == other.dtype && first.shape.size() == other.shape.size();
  for (size_t d = 0; fits && d < first.shape.size(); ++d) {
    fits = static_cast<int64_t>(d) == dim || first.shape[d] == other.shape[d];
  }
  if (fits) return;
  fail_argument(fmt::format("concatenate: value{} is {} in element 0 and {} in element {}",
                            first.path, to_string(first), to_string(other), place),
                first.path, "only the dimension they are joined along may differ");
}

// Returns dim counted from the front.
int64_t checked_dimension(const LeafDescription& leaf, int64_t dim) {
  const auto rank = static_cast<int64_t>(leaf.shape.size());
  const int64_t result = dim < 0 ? dim + rank : dim;
  if (result >= 0 && result < rank) return result;
  fail_argument(fmt::format("concatenate: value{} is {} and has no dimension {}", leaf.path,
                            to_string(leaf), dim),
                leaf.path, "a scalar must be unsqueezed first");
}

}  // namespace

void slice_leaves(NestedView& view, int64_t start, int64_t end) {
  for (size_t i = 0; i < view.leaves.size(); ++i) {
    at::Tensor& leaf = view.leaves[i];
    if (!leaf.defined()) continue;
    if (leaf.dim() == 0) {
      const std::string path = describe_leaves(view)[i].path;
      fail_argument(fmt::format("slice_tensors: value{} is a scalar and has no rows", path), path,
                    "give tensors whose dimension 0 is the samples");
    }
    leaf = leaf.slice(0, start, end);
  }
}

std::vector<at::Tensor> concatenate_views(const std::vector<NestedView>& views, int64_t dim) {
  if (views.empty()) {
    fail_argument("concatenate: no values are given", "", "give at least one");
  }
  std::vector<Described> all;
  for (const NestedView& view : views) {
    all.push_back({describe_nodes(view), describe_leaves(view)});
    require_same_structure(all.front(), all.back(), all.size() - 1);
  }
  std::vector<at::Tensor> result(views[0].leaves.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const LeafDescription& first = all[0].leaves[i];
    const bool defined = first.dtype != at::ScalarType::Undefined;
    const int64_t along = defined ? checked_dimension(first, dim) : 0;
    std::vector<at::Tensor> parts;
    for (size_t v = 0; v < views.size(); ++v) {
      require_joinable(first, all[v].leaves[i], along, v);
      parts.push_back(views[v].leaves[i]);
    }
    if (defined) result[i] = at::cat(parts, along);
  }
  return result;
}

int64_t find_batch_size(const NestedView& view) {
  for (const at::Tensor& leaf : view.leaves) {
    if (!leaf.defined()) continue;
    if (leaf.dim() > 0) return leaf.size(0);
    fail_argument("find_batch_size: the first tensor is a scalar", "",
                  "give a batch whose tensors have the samples as dimension 0");
  }
  fail_argument("find_batch_size: the value contains no tensor", "", "give a batch with a tensor");
}

}  // namespace coupler::detail
