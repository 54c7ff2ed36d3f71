// Nested structures of tensors, as models take and return them: at::Tensor, std::vector,
// std::array, std::map<std::string, …>, std::pair, std::tuple, std::optional and
// torch::data::Example, nested arbitrarily, and user-defined structs that name their fields:
//
//   struct Output { torch::Tensor loss; std::map<std::string, torch::Tensor> scores; };
//   template <>
//   struct coupler::NestedFields<Output> {
//     static constexpr auto fields = std::make_tuple(coupler::nested_field("loss", &Output::loss),
//                                                    coupler::nested_field("scores",
//                                                    &Output::scores));
//   };
//
// A leaf is a tensor, including an undefined one. Leaves are visited in the order of the structure:
// maps by key, structs by the listed order of fields. Pure functions, any thread; tensor data is
// never copied here, only handles. Common operations on them,
// under Accelerate's names, follow below.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::data {
template <typename Data, typename Target>
struct Example;
}  // namespace torch::data

namespace coupler {

// A member of a struct and its name, for NestedFields.
template <class Struct, class Member>
struct NestedField {
  const char* name;        // borrowed
  Member Struct::*member;  // pointer to the member
};

// Names a member; name is borrowed.
template <class Struct, class Member>
constexpr NestedField<Struct, Member> nested_field(const char* name, Member Struct::*member) {
  return {name, member};
}

// Specialize this for a user-defined struct, with a tuple of nested_field()s called `fields`. The
// struct must be copyable; members that are not listed are copied unchanged.
template <class Struct>
struct NestedFields {};

namespace detail {

enum class NodeKind : uint8_t {
  kTensor,
  kSequence,  // vector, array or tuple: count elements follow
  kMap,       // count times kKey and an element
  kStruct,    // count times kField and an element
  kKey,
  kField,
  kNothing,  // an empty optional; one that holds a value is that value
};

// How to traverse a T. A visitor has
//   void tensor(T&)                      a leaf (const where the structure is)
//   void node(NodeKind, size_t count)    kSequence, kMap, kStruct, kNothing; its elements follow
//   bool key(NodeKind, string_view name) kKey, kField; false: skip this element
template <class T, class = void>
struct NestedTraits {
  static constexpr bool nested = false;
};

template <>
struct NestedTraits<at::Tensor> {
  static constexpr bool nested = true;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.tensor(value);
  }
};

template <class Element>
struct NestedSequence {
  static constexpr bool nested = NestedTraits<Element>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kSequence, value.size());
    for (auto& element : value) NestedTraits<Element>::walk(element, visitor);
  }
};
template <class T, class Allocator>
struct NestedTraits<std::vector<T, Allocator>> : NestedSequence<T> {};
template <class T, size_t n>
struct NestedTraits<std::array<T, n>> : NestedSequence<T> {};

template <class T, class Compare, class Allocator>
struct NestedTraits<std::map<std::string, T, Compare, Allocator>> {
  static constexpr bool nested = NestedTraits<T>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kMap, value.size());
    for (auto& [name, element] : value) {
      if (visitor.key(NodeKind::kKey, name)) NestedTraits<T>::walk(element, visitor);
    }
  }
};

template <class T>
struct NestedTraits<std::optional<T>> {
  static constexpr bool nested = NestedTraits<T>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    if (value.has_value()) {
      NestedTraits<T>::walk(*value, visitor);
    } else {
      visitor.node(NodeKind::kNothing, 0);
    }
  }
};

template <class... Ts>
struct NestedTraits<std::tuple<Ts...>> {
  static constexpr bool nested = (NestedTraits<Ts>::nested && ...);
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kSequence, sizeof...(Ts));
    std::apply([&](auto&... elements) { (NestedTraits<Ts>::walk(elements, visitor), ...); }, value);
  }
};

template <class Visitor, class Element>
void walk_field(const char* name, Element& element, Visitor& visitor) {
  if (!visitor.key(NodeKind::kField, name)) return;
  NestedTraits<std::remove_const_t<Element>>::walk(element, visitor);
}

template <class First, class Second>
struct NestedTraits<std::pair<First, Second>> {
  static constexpr bool nested = NestedTraits<First>::nested && NestedTraits<Second>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kStruct, 2);
    walk_field("first", value.first, visitor);
    walk_field("second", value.second, visitor);
  }
};

template <class Data, class Target>
struct NestedTraits<torch::data::Example<Data, Target>> {
  static constexpr bool nested = NestedTraits<Data>::nested && NestedTraits<Target>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kStruct, 2);
    walk_field("data", value.data, visitor);
    walk_field("target", value.target, visitor);
  }
};

template <class Data>
struct NestedTraits<torch::data::Example<Data, void>> {  // TensorExample
  static constexpr bool nested = NestedTraits<Data>::nested;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    visitor.node(NodeKind::kStruct, 1);
    walk_field("data", value.data, visitor);
  }
};

template <class Struct>
struct NestedTraits<Struct, std::void_t<decltype(NestedFields<Struct>::fields)>> {
  static constexpr bool nested = true;
  template <class Value, class Visitor>
  static void walk(Value& value, Visitor& visitor) {
    constexpr auto& fields = NestedFields<Struct>::fields;
    visitor.node(NodeKind::kStruct, std::tuple_size_v<std::decay_t<decltype(fields)>>);
    std::apply(
        [&](const auto&... field) {
          (walk_field(field.name, value.*(field.member), visitor), ...);
        },
        fields);
  }
};

}  // namespace detail

// Whether a type is a nested structure of tensors.
template <class T>
inline constexpr bool is_nested_v = detail::NestedTraits<T>::nested;

// A leaf's path, dtype and shape: path `["logits"][2].first`, empty if the value itself is a
// tensor.
struct LeafDescription {
  std::string path;                                  // of the leaf in the structure
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined for an undefined tensor
  std::vector<int64_t> shape;                        // sizes of its dimensions
};

namespace detail {

struct Node {
  NodeKind kind;
  size_t count = 0;
  std::string_view name;  // borrowed from the structure
};

// A flattened structure, for code that is not a template. Valid as long as the structure.
struct NestedView {
  std::vector<at::Tensor> leaves;
  std::vector<Node> nodes;  // in the order of a walk, one for each leaf included

  void tensor(const at::Tensor& leaf) {
    nodes.push_back({NodeKind::kTensor, 0, {}});
    leaves.push_back(leaf);
  }
  void node(NodeKind kind, size_t count) { nodes.push_back({kind, count, {}}); }
  bool key(NodeKind kind, std::string_view name) {
    nodes.push_back({kind, 0, name});
    return true;
  }
};

template <class T>
NestedView view_of(const T& value) {
  NestedView view;
  NestedTraits<T>::walk(value, view);
  return view;
}

template <class Function>
struct EachLeaf {
  Function& function;
  template <class Tensor>
  void tensor(Tensor& leaf) {
    function(leaf);
  }
  void node(NodeKind, size_t) {}
  bool key(NodeKind, std::string_view) { return true; }
};

// A node of a structure, except keys and fields, with its path and kind ("vector of 3"; empty for a
// tensor). describe_nodes returns them in order.
struct DescribedNode {
  std::string path;
  std::string what;
  int64_t leaf = -1;  // index of the leaf; -1 if it is not one
};
std::vector<DescribedNode> describe_nodes(const NestedView& view);
std::vector<LeafDescription> describe_leaves(const NestedView& view);

}  // namespace detail

// Calls function with every leaf: at::Tensor&, const where value is.
template <class T, class Function>
void for_each_leaf(T& value, Function&& function) {
  static_assert(is_nested_v<std::remove_const_t<T>>, "not a nested structure of tensors: nested.h");
  detail::EachLeaf<Function> each{function};
  detail::NestedTraits<std::remove_const_t<T>>::walk(value, each);
}

// Returns the same structure with each leaf replaced by function(leaf).
template <class Function, class T>
T recursively_apply(Function&& function, T value) {
  for_each_leaf(value, [&](at::Tensor& leaf) { leaf = function(std::as_const(leaf)); });
  return value;
}

// Returns path, dtype and shape of each leaf, in order.
template <class T>
std::vector<LeafDescription> describe_leaves(const T& value) {
  static_assert(is_nested_v<T>, "not a nested structure of tensors: nested.h");
  return detail::describe_leaves(detail::view_of(value));
}

// Formats dtype and shape: "Float [2, 3]"; "undefined".
std::string to_string(const LeafDescription& leaf);

namespace detail {

// Returns the structure with these leaves, as many as it has.
template <class T>
T with_leaves(T value, std::vector<at::Tensor> leaves) {
  size_t next = 0;
  for_each_leaf(value, [&](at::Tensor& leaf) { leaf = std::move(leaves.at(next++)); });
  return value;
}

}  // namespace detail

// ---- Operations under Accelerate's names. No communication. Undefined leaves stay undefined.
// Errors name the leaf. ----

namespace detail {

struct LeafMover {
  at::Device device;
  bool non_blocking;
  const std::vector<std::string>& skip_keys;
  void tensor(at::Tensor& leaf) const {
    if (leaf.defined() && leaf.device() != device) {
      leaf = leaf.to(device, leaf.scalar_type(), non_blocking);
    }
  }
  void node(NodeKind, size_t) const {}
  bool key(NodeKind, std::string_view name) const {
    return std::find(skip_keys.begin(), skip_keys.end(), name) == skip_keys.end();
  }
};

void slice_leaves(NestedView& view, int64_t start, int64_t end);
std::vector<at::Tensor> concatenate_views(const std::vector<NestedView>& views, int64_t dim);
int64_t find_batch_size(const NestedView& view);

}  // namespace detail

// Returns the structure with its tensors on `device`. Elements under a map key or field listed in
// skip_keys are not moved. non_blocking: copies from pinned memory are only started.
template <class T>
T send_to_device(T value, at::Device device, bool non_blocking = false,
                 const std::vector<std::string>& skip_keys = {}) {
  static_assert(is_nested_v<T>, "not a nested structure of tensors: nested.h");
  detail::LeafMover mover{device, non_blocking, skip_keys};
  detail::NestedTraits<T>::walk(value, mover);
  return value;
}

// Returns rows start to end (exclusive) of every leaf, as views. As in Python, negative indices
// count from the end, and indices beyond the last row are clamped. Throws Error(kInvalidArgument)
// for a scalar leaf.
template <class T>
T slice_tensors(const T& value, int64_t start, int64_t end) {
  detail::NestedView view = detail::view_of(value);
  detail::slice_leaves(view, start, end);
  return detail::with_leaves(value, std::move(view.leaves));
}

// Concatenates the leaves of `values` along dim into one structure. Throws Error(kInvalidArgument)
// if values is empty, or one differs from the first in structure, dtype or another dimension.
template <class T>
T concatenate(const std::vector<T>& values, int64_t dim = 0) {
  std::vector<detail::NestedView> views;
  views.reserve(values.size());
  for (const T& value : values) views.push_back(detail::view_of(value));
  auto leaves = detail::concatenate_views(views, dim);  // throws if there is no front()
  return detail::with_leaves(values.front(), std::move(leaves));
}

// Returns dimension 0 of the first tensor. Throws Error(kInvalidArgument) if there is none, or it
// is a scalar.
template <class T>
int64_t find_batch_size(const T& value) {
  static_assert(is_nested_v<T>, "not a nested structure of tensors: nested.h");
  return detail::find_batch_size(detail::view_of(value));
}

// Splits a value that all ranks have: each rank gets consecutive elements, in rank order, and the
// first n % world_size ranks get one more. A std::vector is split by elements, a tensor by rows (a
// view), a std::map by splitting every value; these must have equal lengths. Pure functions, any
// thread; used by Accelerator::split_between_processes.

namespace detail {

struct SplitRange {
  int64_t start = 0, end = 0;
  int64_t repeats = 0;  // copies of the last of all elements to append
};
// Throws Error(kInvalidArgument) unless rank is below world_size.
SplitRange split_range(int64_t count, int rank, int world_size, bool apply_padding);
[[noreturn]] void refuse_lengths(const std::string& first, int64_t count, const std::string& other,
                                 int64_t other_count);

// Throws Error(kInvalidArgument) for a scalar.
int64_t rows_to_split(const at::Tensor& tensor);
at::Tensor take(const at::Tensor& tensor, const SplitRange& part);

template <class T>
struct Splittable {
  static constexpr bool yes = false;
};
template <>
struct Splittable<at::Tensor> {
  static constexpr bool yes = true;
  static int64_t length(const at::Tensor& tensor) { return rows_to_split(tensor); }
  static at::Tensor apply(const at::Tensor& tensor, const SplitRange& part) {
    return take(tensor, part);
  }
};
template <class T>
struct Splittable<std::vector<T>> {
  static constexpr bool yes = true;
  static int64_t length(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size());
  }
  static std::vector<T> apply(const std::vector<T>& values, const SplitRange& part) {
    std::vector<T> result(values.begin() + part.start, values.begin() + part.end);
    if (part.repeats > 0)
      result.insert(result.end(), static_cast<size_t>(part.repeats), values.back());
    return result;
  }
};
template <class T>
struct Splittable<std::map<std::string, T>> {
  static constexpr bool yes = Splittable<T>::yes;
  static int64_t length(const std::map<std::string, T>& values) {
    std::optional<int64_t> count;
    for (const auto& [name, value] : values) {
      const int64_t length = Splittable<T>::length(value);
      if (count.value_or(length) != length) {
        refuse_lengths(values.begin()->first, *count, name, length);
      }
      count = length;
    }
    return count.value_or(0);
  }
  static std::map<std::string, T> apply(const std::map<std::string, T>& values,
                                        const SplitRange& part) {
    std::map<std::string, T> result;
    for (const auto& [name, value] : values) {
      result.emplace(name, Splittable<T>::apply(value, part));
    }
    return result;
  }
};

}  // namespace detail

// apply_padding: pads shorter parts with the last element to the length of the longest; an empty
// value stays empty. Without it, ranks from n on get an empty part.
template <class T>
T split_between(const T& value, int rank, int world_size, bool apply_padding = false) {
  static_assert(detail::Splittable<T>::yes,
                "split_between_processes takes a vector, a tensor, or a map of these");
  const int64_t count = detail::Splittable<T>::length(value);
  return detail::Splittable<T>::apply(value,
                                      detail::split_range(count, rank, world_size, apply_padding));
}

}  // namespace coupler
