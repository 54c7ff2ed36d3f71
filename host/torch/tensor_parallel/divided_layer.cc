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
#include <vector>

#include "empty_weights/recording.h"
#include "tensor_parallel/overlapped_product.h"
#include "tensors/autocast_state.h"
#include "tensors/divided_values.h"

namespace coupler::tensor_parallel {
namespace {

using sharding::TensorStyle;

// What autocast would make of a product's input: what ranks exchange is then of that type.
at::ScalarType computed_type(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!residency::is_autocast_on(device) || x.scalar_type() == at::kDouble) return x.scalar_type();
  return at::autocast::get_autocast_dtype(device);
}

at::IntArrayRef before_features(const at::Tensor& x) {
  return x.sizes().slice(0, static_cast<size_t>(std::max<int64_t>(x.dim() - 1, 0)));
}

bool takes_part(TensorStyle style) {
  return style == TensorStyle::kRowwise || style == TensorStyle::kRowwiseSplit;
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

// A colwise layer made this, which has several blocks of features. What follows on this thread may
// be made of it, until a layer makes whole values, or until nothing is left of it: a forward that
// throws gets no further, and a model may end with such a layer.
void begin_of_divided(const at::Tensor& made, int64_t blocks, int rank) {
  const auto known = tensors::divided_values();
  auto values = known == nullptr ? tensors::DividedValues{.features = {}, .rank = rank} : *known;
  values.life = tensors::GraphLife(made);
  const int64_t features = made.size(-1) / blocks;
  if (std::find(values.features.begin(), values.features.end(), features) == values.features.end())
    values.features.push_back(features);
  tensors::set_divided_values(std::make_shared<const tensors::DividedValues>(std::move(values)));
}

void end_of_divided() { tensors::set_divided_values(nullptr); }

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
  const at::Tensor tokens = indices.toTensor();
  std::optional<int64_t> divided;  // dimension of the result
  if (weight_.sequence) divided = tokens_in(tokens.sizes(), weight_.lookup_name, /*divides=*/true);
  if (!weight_.divided) {
    run();
    stack.back() = own_tokens(stack.back().toTensor(), divided.value(), group_);
    return;
  }
  const int64_t rows = weight_.weight.size(0), first = rows * group_->rank();
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
  end_of_divided();
  const at::Tensor found = stack.back().toTensor().masked_fill(elsewhere.unsqueeze(-1), 0);
  if (divided) {
    stack.back() = own_tokens_of_sum(found, *divided, group_);
    return;
  }
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
  const size_t begin = stack.size() - op.schema().arguments().size();
  const bool addmm = op.schema().name() == "aten::addmm";
  LayerInput input{product.x};
  if (style != TensorStyle::kShared || weight_.sequence) {
    input = input_of(product.x);
    require_width(input.values);
    stack[begin + (addmm ? 1 : 0)] = input.values;
  }
  if (!weight_.divided) {
    input.complete();
    run();
    // With parts of the sequence, the weight's gradients are summed instead.
    if (style == TensorStyle::kShared && !weight_.sequence)
      stack.back() = sum_gradient_of_result(stack.back().toTensor(), group_);
    return;
  }
  const bool whole = style != TensorStyle::kColwise && style != TensorStyle::kVocab;
  at::Tensor bias;
  if (whole && product.bias.defined()) {
    bias = product.bias;
    if (addmm) {
      stack[begin] = at::zeros({1}, stack[begin + 1].toTensor().options());
      stack[begin + 3] = 0;  // beta: the zeros are not even read
    } else {
      stack[begin + 2] = c10::IValue();
    }
  }
  const residency::Product own{input.values, product.matrix, whole ? at::Tensor() : product.bias,
                               product.out_in};
  // Hooks inside of this one, such as LoRA's if attached later, are called by run() only.
  const bool can = weight_.overlap_chunks > 1 && can_overlap(own) &&
                   !residency::has_hooks_inside(product.matrix, *this);
  if (!can || tensors::fp8_linear()) input.complete();
  std::optional<at::Tensor> made;
  if (!weight_.transposed) made = tensors::fp8_product(own.x, weight_.weight, own.bias);
  const bool overlaps = can && !made;
  if (overlaps) made = overlapped(own, input);
  if (made) {
    torch::jit::drop(stack, op.schema().arguments().size());
    stack.emplace_back(*made);
  } else {
    run();
  }
  at::Tensor result = stack.back().toTensor();
  if (style == TensorStyle::kColwise) {
    begin_of_divided(result, weight_.product.blocks, group_->rank());
  } else {
    end_of_divided();
  }
  if (!whole) return watch_result(result);
  if (!overlaps || !takes_part(style)) result = completed(result);
  if (bias.defined()) result = result.add(bias.to(result.scalar_type()));
  stack.back() = result;
}

at::Tensor DividedLayer::overlapped(const residency::Product& product,
                                    const LayerInput& input) const {
  if (!takes_part(weight_.product.style)) {
    return overlapped_product(
        product, {.group = group_, .input = input.gradient, .arriving = input.arriving});
  }
  Overlap overlap{.group = group_, .chunks = weight_.overlap_chunks};
  if (!weight_.sequence) {
    overlap.result = ResultExchange::kSum;
    return overlapped_product(product, overlap);
  }
  overlap.result = ResultExchange::kOwnTokens;
  overlap.dim = tokens_in(before_features(product.x), weight_.product_name, /*divides=*/true);
  return begin_of_parts(overlapped_product(product, overlap), overlap.dim, group_);
}

LayerInput DividedLayer::shared_input_of(const at::Tensor& x,
                                         std::optional<int64_t> gathered) const {
  const at::ScalarType type = computed_type(x);
  if (weight_.overlap_chunks > 1)
    return input_for_overlap(x, type, gathered, weight_.overlap_chunks, group_);
  return {gathered ? gather_for_layers(x, type, *gathered, group_) : sum_gradient(x, type, group_)};
}

LayerInput DividedLayer::input_of(const at::Tensor& x) const {
  const TensorStyle style = weight_.product.style;
  if (style == TensorStyle::kRowwise) return {x.to(computed_type(x))};
  if (style == TensorStyle::kRowwiseSplit)
    return {part_of_last(shared_input_of(x, std::nullopt).values, group_)};
  if (!weight_.sequence) return shared_input_of(x, std::nullopt);
  const int64_t dim = tokens_in(before_features(x), weight_.product_name, /*divides=*/false);
  if (style == TensorStyle::kGatherSequence)
    return {gather_tokens(x.to(computed_type(x)), dim, group_)};
  if (style == TensorStyle::kColwiseGather || style == TensorStyle::kVocab) end_of_parts();
  return shared_input_of(x, dim);
}

// Of a layer whose outputs are whole.
at::Tensor DividedLayer::completed(const at::Tensor& result) const {
  if (!takes_part(weight_.product.style)) return gather_last(result, group_);
  if (weight_.sequence) {
    const int64_t dim = tokens_in(before_features(result), weight_.product_name, /*divides=*/true);
    return own_tokens_of_sum(result, dim, group_);
  }
  sum_values(result, group_);
  return result;
}

int64_t DividedLayer::tokens_in(at::IntArrayRef sizes, const std::string& layer,
                                bool divides) const {
  const int64_t ranks = group_->size();
  // A lookup of positions that all sequences share has no batch.
  const bool alone = sizes.size() == 1 && layer == weight_.lookup_name;
  if (sizes.size() != 2 && !alone) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' gets values of [{}] before their features, but with parallel.sequence "
                    "the sequence is divided over {} ranks, so that it needs [batch, tokens]",
                    layer, fmt::join(sizes, ", "), ranks),
        {.subject = layer,
         .hint = "flatten batches and tokens after the head, or set parallel.sequence to false"});
  }
  const int64_t dim = alone ? 0 : *weight_.sequence, tokens = sizes[static_cast<size_t>(dim)];
  if (!divides || tokens % ranks == 0) return dim;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' gets {} tokens in dimension {}, which cannot be divided over the "
                          "{} ranks of the tensor group (parallel.sequence)",
                          layer, tokens, dim, ranks),
              {.subject = layer,
               .hint = "pad sequences to a multiple of parallel.tensor, or set parallel.sequence "
                       "to false"});
}

void DividedLayer::watch_result(const at::Tensor& result) {
  if (watched_.exchange(true)) return;
  heads_ = std::make_shared<HeadsCheck>(weight_.product_name, weight_.product_line, group_->size(),
                                        weight_.product, weight_.sequence);
  HeadsCheck::watch(result, heads_);
  errors_ = std::make_shared<PlanErrors>(weight_.product_name, weight_.product_line, group_->size(),
                                         result.size(-1));
  PlanErrors::watch(result, errors_);
}

// LibTorch's own error would name sizes that the program does not have.
void DividedLayer::require_width(const at::Tensor& x) const {
  const int64_t own = weight_.weight.size(weight_.transposed ? 0 : 1);
  if (x.dim() > 0 && x.size(-1) == own) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is divided over {} ranks ({}) and takes inputs of {} features on each, but "
                  "got [{}]",
                  weight_.product_name, group_->size(), weight_.product_line, own,
                  fmt::join(x.sizes(), ", ")),
      {.subject = weight_.product_name,
       .hint = "rowwise layers take what colwise ones make; a layer between them that reshapes "
               "by a number of heads needs coupler::local_heads, and one that needs whole inputs "
               "the style rowwise_split or colwise_gather"});
}

// Only what gradients flow through: values, detached or under no_grad, are the program's to read.
void DividedLayer::require_known(const c10::OperatorHandle& op,
                                 const torch::jit::Stack& stack) const {
  if (!weight_.divided || !at::GradMode::is_enabled() || is_neutral(op)) return;
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
