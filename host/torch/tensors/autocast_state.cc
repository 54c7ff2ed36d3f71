#include "tensors/autocast_state.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

namespace coupler::tensors {
namespace {

thread_local std::optional<c10::ScalarType> fp8_gradient_type;
thread_local unsigned replaced_ops = 0;
Fp8Product product_in_fp8 = nullptr;

}  // namespace

bool goes_to_recorder() {
  return c10::impl::tls_is_dispatch_key_included(kRecordedKey) &&
         !c10::impl::tls_is_dispatch_key_excluded(kRecordedKey);
}

void use_replaced_ops(ReplacedOps ops, bool use) {
  const auto bit = static_cast<unsigned>(ops);
  replaced_ops = use ? replaced_ops | bit : replaced_ops & ~bit;
  c10::impl::tls_set_dispatch_key_included(kReplacedOpsKey, replaced_ops != 0);
}

ReplacedOpAgain::ReplacedOpAgain(bool is_replaced)
    : again_(is_replaced && c10::impl::tls_is_dispatch_key_excluded(kReplacedOpsKey)) {
  if (again_) c10::impl::tls_set_dispatch_key_excluded(kReplacedOpsKey, false);
}
ReplacedOpAgain::~ReplacedOpAgain() {
  if (again_) c10::impl::tls_set_dispatch_key_excluded(kReplacedOpsKey, true);
}

std::optional<c10::ScalarType> set_fp8_linear(std::optional<c10::ScalarType> gradients) {
  use_replaced_ops(ReplacedOps::kLinear, gradients.has_value());
  return std::exchange(fp8_gradient_type, gradients);
}

std::optional<c10::ScalarType> fp8_linear() { return fp8_gradient_type; }

std::optional<at::Tensor> fp8_product(const at::Tensor& input, const at::Tensor& weight,
                                      const at::Tensor& bias) {
  if (!fp8_gradient_type || product_in_fp8 == nullptr) return std::nullopt;
  return product_in_fp8(input, weight, bias);
}

void set_fp8_product(Fp8Product product) { product_in_fp8 = product; }

std::shared_ptr<void> outside_autocast() {
  struct Outside {
    Outside() = default;
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside() { set_fp8_linear(fp8_gradients); }
    const c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
    const std::optional<c10::ScalarType> fp8_gradients = set_fp8_linear(std::nullopt);
  };
  return std::make_shared<Outside>();
}

}  // namespace coupler::tensors
