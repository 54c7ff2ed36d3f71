#include <ATen/ops/cat.h>
#include <coupler/nested.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace coupler {

namespace detail {
namespace {

// A map's key as written in C++, with anything but printable ASCII as \xNN, so that a path is one
// line whatever the key.
std::string quoted(std::string_view key) {
  std::string result = "\"";
  for (const char c : key) {
    if (c == '"' || c == '\\') result += '\\';
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return result + '"';
}

// Walks a view's nodes as a tree and describes each.
class Describer {
 public:
  explicit Describer(const NestedView& view) : nodes_(view.nodes) {}

  std::vector<DescribedNode> run() {
    describe("");
    return std::move(result_);
  }

 private:
  void describe(const std::string& path) {
    const Node node = nodes_[next_++];
    const size_t place = result_.size();
    result_.push_back({path, {}, -1});
    std::vector<std::string> names;
    for (size_t i = 0; i < node.count; ++i) {
      if (node.kind == NodeKind::kSequence) {
        describe(fmt::format("{}[{}]", path, i));
        continue;
      }
      const Node name = nodes_[next_++];
      const bool key = name.kind == NodeKind::kKey;
      names.push_back(key ? quoted(name.name) : std::string(name.name));
      describe(path + (key ? "[" + names.back() + "]" : "." + names.back()));
    }
    switch (node.kind) {
      case NodeKind::kTensor:
        result_[place].leaf = leaves_++;
        break;
      case NodeKind::kSequence:
        result_[place].what = fmt::format("{} elements", node.count);
        break;
      case NodeKind::kMap:
        result_[place].what = fmt::format("a map with the keys [{}]", fmt::join(names, ", "));
        break;
      case NodeKind::kStruct:
        result_[place].what = fmt::format("a struct of [{}]", fmt::join(names, ", "));
        break;
      default:
        result_[place].what = "nothing";
    }
  }

  const std::vector<Node>& nodes_;
  size_t next_ = 0;
  int64_t leaves_ = 0;
  std::vector<DescribedNode> result_;
};

}  // namespace

std::vector<DescribedNode> describe_nodes(const NestedView& view) { return Describer(view).run(); }

std::vector<LeafDescription> describe_leaves(const NestedView& view) {
  std::vector<LeafDescription> result;
  for (DescribedNode& node : describe_nodes(view)) {
    if (node.leaf < 0) continue;
    const at::Tensor& leaf = view.leaves[static_cast<size_t>(node.leaf)];
    result.push_back({std::move(node.path), at::ScalarType::Undefined, {}});
    if (!leaf.defined()) continue;
    result.back().dtype = leaf.scalar_type();
    result.back().shape = leaf.sizes().vec();
  }
  return result;
}

}  // namespace detail

std::string to_string(const LeafDescription& leaf) {
  if (leaf.dtype == at::ScalarType::Undefined) return "undefined";
  return fmt::format("{} [{}]", toString(leaf.dtype), fmt::join(leaf.shape, ", "));
}

}  // namespace coupler

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

SplitRange split_range(int64_t count, int rank, int world_size, bool apply_padding) {
  if (rank < 0 || rank >= world_size) {
    fail_argument(
        fmt::format("split_between: rank {} is outside the world of {}", rank, world_size), "rank",
        "name a rank from 0 to world - 1");
  }
  const int64_t each = count / world_size, more = count % world_size;
  SplitRange part;
  part.start = rank * each + std::min<int64_t>(rank, more);
  part.end = part.start + each + (rank < more ? 1 : 0);
  if (apply_padding && more > 0 && rank >= more) part.repeats = 1;
  return part;
}

void refuse_lengths(const std::string& first, int64_t count, const std::string& other,
                    int64_t other_count) {
  fail_argument(fmt::format("split_between_processes: \"{}\" has {} elements and \"{}\" has {}",
                            first, count, other, other_count),
                other, "the values of a map must be equally long");
}

int64_t rows_to_split(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  fail_argument(fmt::format("split_between_processes: {} tensor has no rows to split",
                            tensor.defined() ? "a scalar" : "an undefined"),
                "", "give a tensor of one dimension or more");
}

at::Tensor take(const at::Tensor& tensor, const SplitRange& part) {
  const at::Tensor own = tensor.slice(0, part.start, part.end);
  if (part.repeats == 0) return own;
  return at::cat({own, tensor.slice(0, tensor.size(0) - 1)});
}

}  // namespace coupler::detail
