#include "tensor_parallel/divided_layer.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "empty_weights/recording.h"

namespace coupler::tensor_parallel {
namespace {

using sharding::TensorStyle;

// What autocast would make of a product's input: the gradients to be summed are then of that type.
at::Tensor as_computed(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!residency::is_autocast_on(device) || x.scalar_type() == at::kDouble) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
}

// Operations that say nothing about the layer: they make copies and views, or move values.
bool is_neutral(const c10::OperatorHandle& op) {
  constexpr std::array<std::string_view, 6> kCopies = {
      "aten::to", "aten::_to_copy", "aten::clone", "aten::copy_", "aten::detach", "aten::alias"};
  const std::string& name = op.schema().name();
  if (std::find(kCopies.begin(), kCopies.end(), name) != kCopies.end()) return true;
  const auto& results = op.schema().returns();
  // Views, and writes to the parameter.
  return std::all_of(results.begin(), results.end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

}  // namespace

DividedLayer::DividedLayer(DividedWeight weight, Group group)
    : ParameterHook(residency::HookPlace::kResult),
      weight_(std::move(weight)),
      group_(std::move(group)) {}

void DividedLayer::around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                          const std::function<void()>& run) {
  if (residency::in_backward()) return run();
  if (is_lookup(op, stack)) return run_lookup(stack, run);
  if (const auto product = own_product(op, stack)) return run_product(*product, op, stack, run);
  require_known(op, stack);
  run();
}

bool DividedLayer::is_lookup(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (weight_.lookup_name.empty() || op.schema().name() != "aten::embedding") return false;
  const c10::IValue& matrix = stack[stack.size() - op.schema().arguments().size()];
  return residency::view_of(matrix.toTensor(), weight_.weight) == residency::MatrixView::kStored;
}

// aten::embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse).
void DividedLayer::run_lookup(torch::jit::Stack& stack, const std::function<void()>& run) const {
  c10::IValue& indices = stack[stack.size() - 4];
  c10::IValue& padding = stack[stack.size() - 3];
  const int64_t rows = weight_.weight.size(0), first = rows * group_->rank();
  const at::Tensor tokens = indices.toTensor();
  if (tokens.is_cpu() && tokens.numel() > 0) {
    const int64_t all = rows * group_->size(), most = tokens.max().item<int64_t>(),
                  least = tokens.min().item<int64_t>();
    if (least < 0 || most >= all) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' has {} rows, but is asked for row {}", weight_.lookup_name, all,
                              least < 0 ? least : most),
                  {.subject = weight_.lookup_name,
                   .hint = "check the tokens against the size of the vocabulary"});
    }
  }
  const at::Tensor here = tokens.sub(first);
  const at::Tensor elsewhere = here.lt(0).logical_or(here.ge(rows));
  indices = here.masked_fill(elsewhere, 0);
  const int64_t padded = padding.toInt() - first;
  padding = padding.toInt() >= 0 && padded >= 0 && padded < rows ? padded : int64_t{-1};
  run();
  const at::Tensor found = stack.back().toTensor().masked_fill(elsewhere.unsqueeze(-1), 0);
  sum_values(found, group_);
  stack.back() = found;
}

std::optional<residency::Product> DividedLayer::own_product(const c10::OperatorHandle& op,
                                                            const torch::jit::Stack& stack) const {
  if (weight_.product_name.empty()) return std::nullopt;
  auto product = residency::product_of(op, stack);
  if (!product) return std::nullopt;
  const auto expected = product->out_in != weight_.transposed ? residency::MatrixView::kStored
                                                              : residency::MatrixView::kTransposed;
  if (residency::view_of(product->matrix, weight_.weight) != expected) return std::nullopt;
  return product;
}

// The bias, which an operation may add together with the product, is whole if the result is: it is
// then added to that.
void DividedLayer::run_product(const residency::Product& product, const c10::OperatorHandle& op,
                               torch::jit::Stack& stack, const std::function<void()>& run) {
  const TensorStyle style = weight_.product.style;
  if (style == TensorStyle::kShared) {
    run();
    stack.back() = sum_gradient(stack.back().toTensor(), group_);
    return;
  }
  const std::string& name = op.schema().name();
  const size_t begin = stack.size() - op.schema().arguments().size();
  const bool addmm = name == "aten::addmm";
  at::Tensor x = as_computed(product.x);
  const bool takes_part = style == TensorStyle::kRowwise || style == TensorStyle::kRowwiseSplit;
  if (style == TensorStyle::kRowwiseSplit) {
    x = split_last(x, group_);
  } else if (!takes_part) {
    x = sum_gradient(x, group_);
  }
  require_width(x);
  stack[begin + (addmm ? 1 : 0)] = x;
  const bool whole = style != TensorStyle::kColwise && style != TensorStyle::kVocab;
  at::Tensor bias;
  if (whole && product.bias.defined()) {
    bias = product.bias;
    if (addmm) {
      stack[begin] = at::zeros({1}, x.options());
      stack[begin + 3] = 0;  // beta: the zeros are not even read
    } else {
      stack[begin + 2] = c10::IValue();
    }
  }
  run();
  if (!whole) return watch_heads(stack.back().toTensor());
  at::Tensor result = stack.back().toTensor();
  if (takes_part) {
    sum_values(result, group_);
  } else {
    result = gather_last(result, group_);
  }
  if (bias.defined()) result = result.add(bias.to(result.scalar_type()));
  stack.back() = result;
}

void DividedLayer::watch_heads(const at::Tensor& result) {
  if (watched_.exchange(true)) return;
  heads_ =
      std::make_shared<HeadsCheck>(weight_.product_name, group_->size(), weight_.product.multiple);
  HeadsCheck::watch(result, heads_);
}

// LibTorch's own error would name sizes that the program does not have.
void DividedLayer::require_width(const at::Tensor& x) const {
  const int64_t own = weight_.weight.size(weight_.transposed ? 0 : 1);
  if (x.dim() > 0 && x.size(-1) == own) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is divided over {} ranks and takes inputs of {} features on each, but got "
                  "[{}]",
                  weight_.product_name, group_->size(), own, fmt::join(x.sizes(), ", ")),
      {.subject = weight_.product_name,
       .hint = "rowwise layers take what colwise ones make; a layer between them that reshapes "
               "by a number of heads needs coupler::local_heads, and one that needs whole inputs "
               "the style rowwise_split or colwise_gather"});
}

// Only what gradients flow through: values, detached or under no_grad, are the program's to read.
void DividedLayer::require_known(const c10::OperatorHandle& op,
                                 const torch::jit::Stack& stack) const {
  const bool whole = weight_.product.style == TensorStyle::kShared;
  if (whole || !at::GradMode::is_enabled() || is_neutral(op)) return;
  bool trained = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    empty_weights::each_tensor(stack[i], [&](const at::Tensor& tensor) {
      trained = trained || (tensor.requires_grad() && residency::shows(tensor, weight_.weight));
    });
  }
  if (!trained) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{} uses the weight of '{}', of which this rank has only a part: Coupler "
                  "completes matrix products and lookups of a divided weight only",
                  op.schema().name(), weight_.name),
      {.subject = weight_.name,
       .hint = "leave the layer out of the plan, or compute with torch::nn::Linear or Embedding; "
               "terms such as a norm of the weight belong under no_grad, or into the optimizer"});
}

}  // namespace coupler::tensor_parallel
