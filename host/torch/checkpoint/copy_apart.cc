#include "checkpoint/copy_apart.h"

#include <ATen/Functions.h>
#include <sys/mman.h>

#include <cstdint>

namespace coupler::checkpoint {
namespace {

constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
// A smaller tensor may share its pages with allocations that are not ours.
constexpr size_t kLarge = size_t{32} << 20;

bool fits(const at::Tensor& room, const at::Tensor& tensor) {
  return room.defined() && room.sizes() == tensor.sizes() && room.dtype() == tensor.dtype() &&
         room.is_cpu() && room.is_contiguous();
}

at::Tensor new_room(const at::Tensor& tensor) {
  const at::Tensor room = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  if (room.nbytes() > kLarge) {
    const auto begin = reinterpret_cast<uintptr_t>(room.mutable_data_ptr());
    const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
    const uintptr_t end = (begin + room.nbytes()) / kLargePage * kLargePage;
    // A hint only.
    ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // NOLINT: an address
  }
  return room;
}

}  // namespace

at::Tensor copy_apart(const at::Tensor& tensor, const at::Tensor& room) {
  const at::Tensor from = tensor.detach();
  const at::Tensor copy = fits(room, from) ? room : new_room(from);
  copy.copy_(from);
  return copy;
}

}  // namespace coupler::checkpoint
