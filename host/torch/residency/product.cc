#include "residency/product.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>

namespace coupler::residency {

std::optional<Product> product_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string_view name = op.schema().name();
  const c10::IValue* const last = stack.data() + stack.size();
  const size_t count = op.schema().arguments().size();
  const auto argument = [&](size_t i) -> const c10::IValue& { return *(last - count + i); };
  const auto tensor = [&](size_t i) {
    return argument(i).isTensor() ? argument(i).toTensor() : at::Tensor();
  };
  if (!op.schema().overload_name().empty()) return std::nullopt;
  Product product;
  if (name == "aten::linear") {
    product = {tensor(0), tensor(1), tensor(2), /*out_in=*/true};
  } else if (name == "aten::matmul" || name == "aten::mm") {
    product = {tensor(0), tensor(1), {}};
  } else if (name == "aten::addmm") {
    if (!argument(3).toScalar().equal(1) || !argument(4).toScalar().equal(1)) return std::nullopt;
    product = {tensor(1), tensor(2), tensor(0)};
  } else {
    return std::nullopt;
  }
  if (!product.x.defined() || !product.matrix.defined()) return std::nullopt;
  return product;
}

bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_enabled(device) &&
         !c10::impl::tls_is_dispatch_key_excluded(
             at::autocast::get_autocast_dispatch_key_from_device_type(device));
}

}  // namespace coupler::residency
