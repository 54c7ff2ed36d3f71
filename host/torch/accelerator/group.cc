// Groups of ranks in public: Group, and how the Accelerator makes them.
#include <coupler/accelerator.h>
#include <coupler/group.h>

#include <memory>
#include <string>
#include <vector>

#include "accelerator/accelerator.h"
#include "accelerator/collectives.h"
#include "base/error.h"
#include "comm/communicator.h"
#include "groups/groups.h"
#include "tensors/tensor_ops.h"

namespace coupler {

comm::Communicator& Group::comm() const {
  if (comm_ == nullptr) {
    fail_usage("this rank is not in the group: it passed a negative color to split", "group",
               "test the group (`if (group)`) before it is used");
  }
  return *comm_;
}

int Group::rank() const { return comm().rank(); }
int Group::world_size() const { return comm().size(); }
const std::vector<int>& Group::ranks() const { return comm().world_ranks(); }

at::Tensor Group::gather(const at::Tensor& tensor, CallSite) const {
  return gather_nested(detail::view_of(tensor))[0];
}

at::Tensor Group::reduce(const at::Tensor& tensor, ReduceOp reduction, double scale,
                         CallSite) const {
  return reduce_nested(detail::view_of(tensor), reduction, scale)[0];
}

at::Tensor Group::broadcast(const at::Tensor& tensor, int from, CallSite) const {
  return broadcast_nested(detail::view_of(tensor), from)[0];
}

std::vector<at::Tensor> Group::gather_nested(const detail::NestedView& value) const {
  return gather_leaves(comm(), value);
}

std::vector<at::Tensor> Group::reduce_nested(const detail::NestedView& value, ReduceOp reduction,
                                             double scale) const {
  return reduce_leaves(comm(), value, reduction, scale);
}

std::vector<at::Tensor> Group::broadcast_nested(const detail::NestedView& value, int from) const {
  return broadcast_leaves(comm(), value, from);
}

std::vector<at::Tensor> Group::pad_nested(const detail::NestedView& value, int64_t dim,
                                          const at::Scalar& pad_index, bool pad_first) const {
  return pad_leaves(comm(), value, dim, pad_index, pad_first);
}

void Group::wait_for_everyone(CallSite) const { comm().run(tensors::host_op(DB_BARRIER)); }

Group Group::split(int color, int key, CallSite) const {
  // All negative colors mean the same; backends get one.
  return Group(comm().split(color < 0 ? -1 : color, key, "split", "split"));
}

const Mesh& Accelerator::mesh() const { return impl_->groups->mesh(); }

Group Accelerator::group(const std::string& name, CallSite) {
  return Group(impl_->groups->get(groups::dimensions_of(name)));
}

Group Accelerator::split(int color, int key, CallSite site) {
  return group("world").split(color, key, site);
}

}  // namespace coupler
