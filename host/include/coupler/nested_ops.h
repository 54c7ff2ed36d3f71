// Common operations on nested structures of tensors (nested.h), under Accelerate's names. Pure
// functions, any thread, no communication. Undefined leaves stay undefined. Errors name the leaf.
#pragma once

#include <coupler/nested.h>

#include <algorithm>

namespace coupler {
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

}  // namespace coupler
