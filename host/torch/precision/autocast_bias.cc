// The bias of torch::nn::Linear in autocast. For inputs of more than two dimensions LibTorch's
// layer is a matrix product followed by `+= bias`, and autocast casts the product only: adding an
// fp32 bias to a bf16 product takes a kernel without vector instructions, a tenth of a GPT's step
// on a GPU. This casts the bias, too, as autocast does for the two-dimensional case (addmm) and for
// at::linear, with the same rounding. [any-thread]
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace coupler::precision {
namespace {

// A parameter: what other programs add keeps its type.
bool is_bias(const at::Tensor& other) {
  return other.dim() == 1 && other.scalar_type() == at::kFloat && other.is_leaf() &&
         other.requires_grad();
}

at::Tensor& add(at::Tensor& sum, const at::Tensor& other, const at::Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  const c10::DeviceType device = sum.device().type();
  const at::ScalarType type = sum.scalar_type();
  if (type == at::autocast::get_autocast_dtype(device) && sum.dim() > 2 && is_bias(other)) {
    return sum.add_(at::autocast::cached_cast(type, other, device), alpha);
  }
  return sum.add_(other, alpha);
}

TORCH_LIBRARY_IMPL(aten, AutocastCUDA, library) { library.impl("add_.Tensor", &add); }
TORCH_LIBRARY_IMPL(aten, AutocastCPU, library) { library.impl("add_.Tensor", &add); }

}  // namespace
}  // namespace coupler::precision
