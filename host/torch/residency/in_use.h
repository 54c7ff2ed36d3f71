// InUse: keeps the values of a tensor in memory while pointers into them are used. Operations on
// tensors do not need it: the intercept (intercept.h) does it for them. [any-thread]
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
    kWrite,    // writes a part, or all
    kReplace,  // writes the whole storage: its old contents may be lost
  };
  // Ignores a tensor that is not managed. A managed one may only be read, unless its unit writes
  // back. Throws Error if its values cannot be fetched.
  explicit InUse(const at::Tensor& tensor, Access access = Access::kRead);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  // Writes made since construction need not be kept.
  void drop_writes();

 private:
  Unit* unit_ = nullptr;
  bool written_ = false;  // the unit's `written` before
};

// Calls `visit` with all tensors, in order: managed ones one at a time, so that they need not be in
// memory together, the others in as few lists as possible.
void in_bunches(const std::vector<at::Tensor>& tensors,
                const std::function<void(at::TensorList)>& visit);

}  // namespace coupler
