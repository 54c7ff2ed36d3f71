#include "residency/packed.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "residency/autograd_node.h"
#include "residency/intercept.h"
#include "residency/product.h"

namespace coupler::residency {
namespace {

// Replaces the graph node through which backward would reach a packed parameter.
struct NoBackward : torch::autograd::Node {
  explicit NoBackward(std::string name) : parameter(std::move(name)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    throw Error(ErrorCode::kUsage,
                fmt::format("backward reached '{}', which is quantized: a quantized weight has no "
                            "gradient",
                            parameter),
                {.subject = parameter,
                 .hint = "leave requires_grad of quantized weights off, and train other parameters "
                         "(coupler::lora adds some), or train the model before quantizing it"});
  }
  std::string parameter;
};

// Whether autograd would record an operation on these.
bool is_recorded(std::initializer_list<const at::Tensor*> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor* tensor) {
           return tensor->defined() && tensor->requires_grad();
         });
}

template <class... Tensors>
void end_backward(const at::Tensor& result, const ManagedStorage& managed, const Tensors&... from) {
  const AutogradNode node = make_autograd_node<NoBackward>(managed.name);
  node->set_next_edges(torch::autograd::collect_next_edges(from...));
  torch::autograd::set_history(result, node);
}

const ManagedStorage* packed_storage(const at::Tensor& tensor) {
  const ManagedStorage* const managed = tensor.defined() ? managed_storage_of(tensor) : nullptr;
  return managed != nullptr && managed->packed != nullptr ? managed : nullptr;
}

enum class Side { kOutIn, kInOut };

// The orientation in which a tensor shows its parameter's whole matrix; unset if it shows a part or
// something else.
std::optional<Side> side_of(const at::Tensor& tensor, const ManagedStorage& managed) {
  if (tensor.dim() != 2 || tensor.storage_offset() != 0) return std::nullopt;
  if (tensor.scalar_type() != managed.packed_type || tensor.numel() != managed.packed_numel)
    return std::nullopt;
  const int64_t rows = tensor.size(0), columns = tensor.size(1);
  if (tensor.stride(0) == columns && tensor.stride(1) == 1 && rows == managed.packed_rows)
    return managed.packed->transposed() ? Side::kInOut : Side::kOutIn;
  if (tensor.stride(0) == 1 && tensor.stride(1) == rows && columns == managed.packed_rows)
    return managed.packed->transposed() ? Side::kOutIn : Side::kInOut;
  return std::nullopt;
}

// The product, if its matrix is packed and the kernels take it. In autocast, the inputs get the
// type that autocast computes in.
std::optional<Product> packed_product_of(const c10::OperatorHandle& op,
                                         const torch::jit::Stack& stack) {
  std::optional<Product> product = product_of(op, stack);
  if (!product) return std::nullopt;
  const ManagedStorage* const managed = packed_storage(product->matrix);
  const Side side = product->out_in ? Side::kOutIn : Side::kInOut;
  if (managed == nullptr || side_of(product->matrix, *managed) != side) return std::nullopt;
  at::Tensor& x = product->x;
  at::Tensor& bias = product->bias;
  if (packed_storage(x) != nullptr || packed_storage(bias) != nullptr) return std::nullopt;
  at::ScalarType type = managed->packed_type;
  if (is_autocast_on(x.device().type()) && x.scalar_type() != at::kDouble && type != at::kDouble &&
      x.is_floating_point()) {
    type = at::autocast::get_autocast_dtype(x.device().type());
    x = x.to(type);
    if (bias.defined()) bias = bias.to(type);
  }
  const int64_t out = product->matrix.size(side == Side::kOutIn ? 0 : 1);
  const int64_t in = product->matrix.size(side == Side::kOutIn ? 1 : 0);
  const bool fits = x.dim() >= 1 && x.size(-1) == in && x.layout() == at::kStrided &&
                    x.scalar_type() == type && x.device() == managed->device;
  const bool bias_fits =
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == out && bias.scalar_type() == type &&
                          bias.device() == x.device());
  if (!fits || !bias_fits) return std::nullopt;
  return product;
}

// x times a frozen packed matrix. Backward keeps the parameter, not its values: its operation on it
// comes through the intercept, which unpacks them again.
struct PackedProduct : torch::autograd::Function<PackedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& bias, const at::Tensor& matrix,
                            bool out_in) {
    const ManagedStorage& managed = *packed_storage(matrix);
    context->saved_data["matrix"] = matrix;
    context->saved_data["out_in"] = out_in;
    return managed.packed->multiply(x, bias.value_or(at::Tensor()), managed.memory, managed.device);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    torch::autograd::variable_list result(4);
    if (!gradient.defined()) return result;
    if (context->needs_input_grad(0)) {
      at::Tensor matrix = context->saved_data.at("matrix").toTensor();
      if (!context->saved_data.at("out_in").toBool()) matrix = matrix.t();
      result[0] = gradient.matmul(matrix.to(gradient.scalar_type()));
    }
    if (context->needs_input_grad(1)) result[1] = gradient.reshape({-1, gradient.size(-1)}).sum(0);
    return result;
  }
};

// Operations that only use a tensor's shape and need no values.
bool is_view(std::string_view name) {
  constexpr std::string_view kViews[] = {
      "aten::alias",     "aten::as_strided", "aten::chunk",       "aten::detach",
      "aten::expand",    "aten::narrow",     "aten::numpy_T",     "aten::permute",
      "aten::select",    "aten::slice",      "aten::split",       "aten::split_with_sizes",
      "aten::squeeze",   "aten::swapaxes",   "aten::swapdims",    "aten::t",
      "aten::transpose", "aten::unbind",     "aten::unflatten",   "aten::unsqueeze",
      "aten::view",      "aten::view_as",    "aten::is_same_size"};
  return std::find(std::begin(kViews), std::end(kViews), name) != std::end(kViews);
}

// The values that a parameter, or a view of it, shows.
at::Tensor dense(const at::Tensor& tensor, const ManagedStorage& managed) {
  if (tensor.scalar_type() != managed.packed_type)
    refuse_packed(managed, "viewing it as another type");
  at::Tensor values;
  {
    const at::NoGradGuard no_grad;
    values = managed.packed->unpack(managed.memory, managed.device)
                 .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }
  if (!is_recorded({&tensor})) return values;
  // A view has its own graph, which set_history does not replace.
  values = values.clone();
  end_backward(values, managed, tensor);
  return values;
}

}  // namespace

bool run_packed(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (const auto product = packed_product_of(op, stack)) {
    const auto& [x, matrix, bias, out_in] = *product;
    const ManagedStorage& managed = *packed_storage(matrix);
    at::Tensor result;
    if (is_recorded({&matrix})) {
      {
        const at::NoGradGuard no_grad;
        result = managed.packed->multiply(x, bias, managed.memory, managed.device);
      }
      end_backward(result, managed, x, matrix, bias);
    } else if (is_recorded({&x, &bias})) {
      result = PackedProduct::apply(x, bias.defined() ? std::optional(bias) : std::nullopt, matrix,
                                    out_in);
    } else {
      const at::NoGradGuard no_grad;
      result = managed.packed->multiply(x, bias, managed.memory, managed.device);
    }
    torch::jit::drop(stack, op.schema().arguments().size());
    torch::jit::push(stack, std::move(result));
    return true;
  }
  if (is_view(op.schema().name())) return false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    change_tensors(stack[i], [](const at::Tensor& tensor) {
      const ManagedStorage* const managed = packed_storage(tensor);
      return managed != nullptr ? dense(tensor, *managed) : tensor;
    });
  }
  return false;
}

void refuse_packed(const ManagedStorage& managed, const char* action) {
  throw Error(ErrorCode::kUsage,
              fmt::format("'{}' is quantized, which does not allow {}", managed.name, action),
              {.subject = managed.name,
               .hint = "work on the model before quantizing it, or on a copy of the weight "
                       "(clone() returns its values)"});
}

}  // namespace coupler::residency
