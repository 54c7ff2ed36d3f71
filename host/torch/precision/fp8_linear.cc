#include "precision/fp8_linear.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <vector>

#include "residency/parameter_hooks.h"
#include "tensors/autocast_state.h"

namespace coupler::precision {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFp8Alignment = 16;  // required by fp8 matrix units

struct Scaled {
  at::Tensor values;  // fp8
  at::Tensor scale;   // one float: the factor of values
};

double largest(at::ScalarType type) { return type == at::kFloat8_e5m2 ? 57344 : 448; }

Scaled scaled(const at::Tensor& tensor, at::ScalarType type) {
  // bf16 has the range of fp32 and more mantissa than fp8. If tensor is a sharded parameter, this
  // is the only operation that it is gathered for.
  const at::Tensor narrow = tensor.to(at::kBFloat16);
  const at::Tensor peak = at::linalg_vector_norm(narrow, INFINITY).to(at::kFloat);
  // For all zeros any factor will do. Infinity and NaN propagate into the product, as they should.
  const at::Tensor factor =
      at::exp2(at::floor(at::log2(peak.clamp_min(1e-30).reciprocal().mul(largest(type)))));
  return {narrow.mul(factor).to(type).contiguous(), factor.reciprocal()};
}

at::Tensor transposed(const at::Tensor& matrix) { return matrix.t().contiguous(); }

// a [m, k] times the transpose of b [n, k]; both row-major, as matrix units require.
at::Tensor product(const Scaled& a, const Scaled& b, at::ScalarType type,
                   const std::optional<at::Tensor>& bias = {}) {
  return at::_scaled_mm(a.values, b.values.t(), a.scale, b.scale, bias,
                        /*scale_result=*/std::nullopt, type);
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  // input [rows, in], weight [out, in], bias [out].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            at::ScalarType gradients) {
    const Scaled x = scaled(input, at::kFloat8_e4m3fn);
    const Scaled w = scaled(weight, at::kFloat8_e4m3fn);
    // Saves the weight, not its fp8 copy: a sharded weight is gathered again for backward.
    context->save_for_backward({x.values, x.scale, weight});
    context->saved_data["gradients"] = static_cast<int64_t>(gradients);
    context->saved_data["input"] = static_cast<int64_t>(input.scalar_type());
    context->saved_data["bias"] =
        static_cast<int64_t>(bias ? bias->scalar_type() : at::ScalarType::Undefined);
    return product(x, w, at::kBFloat16, bias ? std::optional(bias->to(at::kBFloat16)) : bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const Scaled x{saved[0], saved[1]};
    const at::Tensor& weight = saved[2];
    const at::Tensor& gradient = outputs[0];
    const auto type = [&](const char* name) {
      return static_cast<at::ScalarType>(context->saved_data[name].toInt());
    };
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const Scaled g = scaled(gradient, type("gradients"));
    variable_list result(4);
    if (context->needs_input_grad(0)) {
      const Scaled w = scaled(weight, at::kFloat8_e4m3fn);
      result[0] = product(g, {transposed(w.values), w.scale}, type("input"));
    }
    if (context->needs_input_grad(1)) {
      // The number of rows depends on the batch, and may not suit matrix units.
      result[1] = gradient.size(0) % kFp8Alignment == 0
                      ? product({transposed(g.values), g.scale}, {transposed(x.values), x.scale},
                                weight.scalar_type())
                      : at::mm(gradient.t(), x.values.to(gradient.scalar_type())).mul(x.scale);
    }
    if (type("bias") != at::ScalarType::Undefined && context->needs_input_grad(2)) {
      result[2] = gradient.sum(0, /*keepdim=*/false, type("bias"));
    }
    return result;
  }
};

bool is_wide(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

bool fp8_fits(const at::Tensor& input, const at::Tensor& weight) {
  return is_wide(input) && is_wide(weight) && input.numel() > 0 && input.dim() > 0 &&
         weight.dim() == 2 && input.size(-1) == weight.size(1) && weight.numel() > 0 &&
         weight.size(0) % kFp8Alignment == 0 && weight.size(1) % kFp8Alignment == 0 &&
         input.device() == weight.device();
}

// A hook of a parameter must see the product: it asks for tensors::fp8_product itself, as that of
// divided layers does, or the layer computes in bf16 (LoRA).
bool fp8_can_compute(const at::Tensor& input, const at::Tensor& weight) {
  return fp8_fits(input, weight) && !residency::has_hooks(weight);
}

// For a layer that fits. Its operations must dispatch below the key.
at::Tensor multiply(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor rows = input.reshape({-1, input.size(-1)});
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  return Fp8Linear::apply(rows, weight, bias, *tensors::fp8_linear()).view(sizes);
}

std::optional<at::Tensor> product_for_hooks(const at::Tensor& input, const at::Tensor& weight,
                                            const at::Tensor& bias) {
  const c10::impl::ExcludeDispatchKeyGuard below(tensors::kReplacedOpsKey);
  if (!fp8_fits(input, weight)) return std::nullopt;
  return multiply(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}
[[maybe_unused]] const bool kHooksKnowIt = [] {
  tensors::set_fp8_product(&product_for_hooks);
  return true;
}();

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  const c10::impl::ExcludeDispatchKeyGuard below(tensors::kReplacedOpsKey);
  if (tensors::fp8_linear() && fp8_can_compute(input, weight)) return multiply(input, weight, bias);
  return at::linear(input, weight, bias);
}

// torch::nn::Linear is input.matmul(weight.t()), or addmm with a bias. Other matrix products have
// batches on both sides, or a second operand that is not a transpose.
bool is_transpose(const at::Tensor& matrix) {
  return matrix.dim() == 2 && matrix.stride(0) == 1 && matrix.stride(1) >= matrix.size(0);
}

at::Tensor matmul(const at::Tensor& input, const at::Tensor& other) {
  const c10::impl::ExcludeDispatchKeyGuard below(tensors::kReplacedOpsKey);
  if (tensors::fp8_linear() && is_transpose(other)) {
    const at::Tensor weight = other.t();
    if (fp8_can_compute(input, weight)) return multiply(input, weight, std::nullopt);
  }
  return at::matmul(input, other);
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& other,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard below(tensors::kReplacedOpsKey);
  if (tensors::fp8_linear() && is_transpose(other) && beta.equal(1) && alpha.equal(1)) {
    const at::Tensor weight = other.t();
    const bool adds_row = bias.dim() == 1 && bias.size(0) == weight.size(0);
    if (adds_row && fp8_can_compute(input, weight)) return multiply(input, weight, bias);
  }
  return at::addmm(bias, input, other, beta, alpha);
}

TORCH_LIBRARY_IMPL(aten, PreDispatch, library) {
  library.impl("linear", &linear);
  library.impl("matmul", &matmul);
  library.impl("addmm", &addmm);
}

}  // namespace

std::string why_no_fp8_units(c10::DeviceType device) {
  if (device != c10::DeviceType::CPU) return "";
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find("amx_fp16");
  if (found != capabilities.end() && found->second.isBool() && found->second.toBool()) return "";
  return "this CPU has no AMX-FP16, so LibTorch's scaled matmul converts to wider types first and "
         "is slower than fp32";
}

}  // namespace coupler::precision
