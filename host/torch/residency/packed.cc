#include "residency/packed.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "residency/autograd_node.h"
#include "residency/intercept.h"

namespace coupler::residency {
namespace {

// Replaces the graph node through which backward would reach a packed parameter.
struct NoBackward : torch::autograd::Node {
  explicit NoBackward(std::string name) : parameter(std::move(name)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    throw Error(ErrorCode::kUsage,
                fmt::format("backward reached '{}', which is quantized: a quantized model has no "
                            "gradients",
                            parameter),
                {.subject = parameter,
                 .hint = "train the model before quantizing it, and run a quantized model under "
                         "torch::NoGradGuard"});
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

struct Product {
  at::Tensor x, weight, bias;
};

// Whether the operation is x times a packed matrix, with or without a bias.
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
  Side side = Side::kInOut;
  if (name == "aten::linear") {
    product = {tensor(0), tensor(1), tensor(2)};
    side = Side::kOutIn;
  } else if (name == "aten::matmul" || name == "aten::mm") {
    product = {tensor(0), tensor(1), {}};
  } else if (name == "aten::addmm") {
    if (!argument(3).toScalar().equal(1) || !argument(4).toScalar().equal(1)) return std::nullopt;
    product = {tensor(1), tensor(2), tensor(0)};
  } else {
    return std::nullopt;
  }
  const ManagedStorage* const managed = packed_storage(product.weight);
  if (managed == nullptr || side_of(product.weight, *managed) != side) return std::nullopt;
  const at::Tensor& x = product.x;
  const int64_t out = product.weight.size(side == Side::kOutIn ? 0 : 1);
  const int64_t in = product.weight.size(side == Side::kOutIn ? 1 : 0);
  const bool fits = x.defined() && packed_storage(x) == nullptr && x.dim() >= 1 &&
                    x.size(-1) == in && x.layout() == at::kStrided &&
                    x.scalar_type() == managed->packed_type && x.device() == managed->device;
  const at::Tensor& bias = product.bias;
  const bool bias_fits =
      !bias.defined() ||
      (bias.dim() == 1 && bias.size(0) == out && bias.scalar_type() == x.scalar_type() &&
       bias.device() == x.device() && packed_storage(bias) == nullptr);
  // Autocast chooses the type it computes in itself, so it gets the values.
  if (!fits || !bias_fits || at::autocast::is_autocast_enabled(x.device().type()))
    return std::nullopt;
  return product;
}

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
  if (const auto product = product_of(op, stack)) {
    const ManagedStorage& managed = *packed_storage(product->weight);
    at::Tensor result;
    {
      const at::NoGradGuard no_grad;
      result = managed.packed->multiply(product->x, product->bias, managed.memory, managed.device);
    }
    if (is_recorded({&product->x, &product->weight, &product->bias}))
      end_backward(result, managed, product->x, product->weight, product->bias);
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
