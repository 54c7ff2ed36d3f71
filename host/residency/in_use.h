// InUse: keeps the values of a tensor in memory while pointers into them are used. Operations on
// tensors need none of this: the intercept (intercept.h) does it for them. [any-thread]
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "residency/unit.h"

namespace coupler {

class InUse {
 public:
  enum class Access {
    kRead,
    kWrite,    // of a part, or of all
    kReplace,  // of the whole storage: what it held may be lost
  };
  // A tensor that is not managed is left alone; one that is, is to be read only, or must be of a
  // unit that writes back. Throws Error where its values cannot be had.
  explicit InUse(const at::Tensor& tensor, Access access = Access::kRead);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  // What was written to it since need not be kept.
  void drop_writes();

 private:
  Unit* unit_ = nullptr;
  bool written_ = false;  // before
};

// Calls `visit` with all tensors, in order: those that are managed one by one, so that they need
// not be in memory together, the others in as few lists as may be.
void in_bunches(const std::vector<at::Tensor>& tensors,
                const std::function<void(at::TensorList)>& visit);

}  // namespace coupler
