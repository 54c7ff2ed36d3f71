// Group: some ranks of a job that communicate among themselves: those of a dimension of the mesh
// (Accelerator::group), or of the program's choice (split). Its functions are the Accelerator's
// with the same names, but over the group: "every rank" is every rank of it, ranks count from 0
// within it, and other groups may do something else meanwhile. coupler/objects.h has gather_object
// and broadcast_object for groups. A handle: copies refer to the same group. Used by the training
// thread; the Accelerator must outlive it.
//
//   coupler::Group tensor = accelerator.group("tensor");
//   auto sum = tensor.reduce(partial);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/comm_hook.h>
#include <coupler/error.h>
#include <coupler/nested.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace coupler {

namespace comm {
class Communicator;
}
namespace detail {
struct ObjectCollectives;  // objects.h
}

class Group {
 public:
  // For Accelerator::group and split.
  explicit Group(std::shared_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}

  // Whether this rank is in it: false after a split with a negative color. Nothing else may then be
  // called; that throws Error(kUsage).
  explicit operator bool() const { return comm_ != nullptr; }

  int rank() const;                       // of this process, within the group
  int world_size() const;                 // number of ranks in the group
  const std::vector<int>& ranks() const;  // their ranks in the job, in the group's order

  // Concatenates over the group's ranks along dimension 0 (scalars become [world_size]).
  at::Tensor gather(const at::Tensor& tensor, CallSite site = {}) const;
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T gather(const T& value, CallSite = {}) const {
    return detail::with_leaves(value, gather_nested(detail::view_of(value)));
  }
  // Returns `scale` times the sum (mean, …) over the group.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp reduction = ReduceOp::kSum,
                    double scale = 1.0, CallSite site = {}) const;
  // Reduces every leaf of a structure.
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T reduce(const T& value, ReduceOp reduction = ReduceOp::kSum, double scale = 1.0,
           CallSite = {}) const {
    return detail::with_leaves(value, reduce_nested(detail::view_of(value), reduction, scale));
  }
  // Returns the value of the group's rank `from`.
  at::Tensor broadcast(const at::Tensor& tensor, int from = 0, CallSite site = {}) const;
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T broadcast(const T& value, int from = 0, CallSite = {}) const {
    return detail::with_leaves(value, broadcast_nested(detail::view_of(value), from));
  }
  // Pads each tensor in dimension dim to its largest size on any rank of the group.
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T pad_across_processes(const T& value, int64_t dim = 0, const at::Scalar& pad_index = 0,
                         bool pad_first = false, CallSite = {}) const {
    return detail::with_leaves(value,
                               pad_nested(detail::view_of(value), dim, pad_index, pad_first));
  }
  // Returns this rank's part of a value that every rank of the group has. Not collective.
  template <class T>
  T split_between_processes(const T& value, bool apply_padding = false) const {
    return split_between(value, rank(), world_size(), apply_padding);
  }
  // Returns when every rank of the group has called it. Throws Error if one does not.
  void wait_for_everyone(CallSite site = {}) const;

  // Divides the group: ranks that pass the same color, from 0, form a new one, in the order of
  // their keys, and of their ranks where these are equal. A negative color: in none. Throws
  // Error(kUnsupported) if the backend cannot split.
  [[nodiscard]] Group split(int color, int key = 0, CallSite site = {}) const;

 private:
  friend struct detail::ObjectCollectives;
  comm::Communicator& comm() const;
  std::vector<at::Tensor> gather_nested(const detail::NestedView& value) const;
  std::vector<at::Tensor> reduce_nested(const detail::NestedView& value, ReduceOp reduction,
                                        double scale) const;
  std::vector<at::Tensor> broadcast_nested(const detail::NestedView& value, int from) const;
  std::vector<at::Tensor> pad_nested(const detail::NestedView& value, int64_t dim,
                                     const at::Scalar& pad_index, bool pad_first) const;

  std::shared_ptr<comm::Communicator> comm_;
};

}  // namespace coupler
