#include <coupler/nested.h>
#include <fmt/ranges.h>

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
