#include "tensor_parallel/heads_check.h"

#include <c10/util/accumulate.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace coupler::tensor_parallel {
namespace {

std::atomic<bool> asked{false};

std::optional<std::vector<int64_t>> integers(const c10::IValue& value) {
  if (value.isIntList()) return value.toIntVector();
  return std::nullopt;
}

bool is_last(const at::Tensor& tensor, int64_t dim) { return dim == -1 || dim == tensor.dim() - 1; }

}  // namespace

void asked_for_heads() { asked.store(true); }

HeadsCheck::HeadsCheck(std::string layer, std::string line, int ranks,
                       const sharding::LayerStyle& style, std::optional<int64_t> sequence)
    : ParameterHook(residency::HookPlace::kModule),
      layer_(std::move(layer)),
      line_(std::move(line)),
      ranks_(ranks),
      head_(style.multiple),
      of_classes_(style.style == sharding::TensorStyle::kVocab),
      sequence_(sequence) {}

void HeadsCheck::watch(const at::Tensor& result, const std::shared_ptr<HeadsCheck>& check) {
  residency::add_hook(result, check);
}

void HeadsCheck::around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                        const std::function<void()>& run) {
  const std::string_view name = op.schema().name();
  const size_t begin = stack.size() - op.schema().arguments().size();
  const bool views = name == "aten::view" || name == "aten::reshape";
  const bool divides = name == "aten::unflatten" && stack[begin + 1].isInt() &&
                       is_last(stack[begin].toTensor(), stack[begin + 1].toInt());
  if (of_classes_ && !residency::in_backward() && stack[begin].isTensor())
    check_classes(name, stack[begin].toTensor().sizes());
  if ((views || divides) && !residency::in_backward()) {
    const at::IntArrayRef before = stack[begin].toTensor().sizes();
    if (auto sizes = integers(stack[begin + (views ? 1 : 2)])) {
      if (divides) sizes->insert(sizes->begin(), before.begin(), before.end() - 1);
      if (sequence_) check_tokens(before, *sizes);
      check(before, std::move(*sizes));
    }
  }
  run();
}

void HeadsCheck::check_classes(std::string_view operation, at::IntArrayRef logits) const {
  constexpr std::array<std::string_view, 4> kOverClasses = {
      "aten::cross_entropy_loss", "aten::log_softmax", "aten::softmax", "aten::argmax"};
  if (std::find(kOverClasses.begin(), kOverClasses.end(), operation) == kOverClasses.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is divided over {} ranks ({}), so that a rank has {} of {} classes, but {} "
                  "takes them for all",
                  layer_, ranks_, line_, logits.empty() ? 0 : logits.back(),
                  logits.empty() ? 0 : logits.back() * ranks_, operation),
      {.subject = layer_,
       .hint = "call coupler::parallel_cross_entropy, or give the layer the style colwise_gather"});
}

// Of [batch, tokens, features] as [batch, tokens, …].
void HeadsCheck::check_tokens(at::IntArrayRef before, const std::vector<int64_t>& sizes) const {
  if (before.size() != 3 || sizes.size() < before.size()) return;
  const auto tokens = static_cast<size_t>(*sequence_);
  const int64_t batch = sizes[1 - tokens];
  const bool part =
      sizes[tokens] * ranks_ == before[tokens] && (batch == before[1 - tokens] || batch == -1);
  if (!part) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' has results for {} tokens, which it gathered from {} ranks, but they are "
                  "viewed as {} tokens ({})",
                  layer_, before[tokens], ranks_, sizes[tokens], line_),
      {.subject = layer_,
       .hint = "take the number of tokens from the results of the layer, not from its inputs, or "
               "set parallel.sequence to false"});
}

// Only of [..., features] as [..., heads, size].
void HeadsCheck::check(at::IntArrayRef before, std::vector<int64_t> sizes) const {
  if (before.empty() || sizes.size() != before.size() + 1) return;
  const bool left_open = sizes.back() == -1;
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    *open = 1;
    const int64_t known = c10::multiply_integers(sizes);
    if (known == 0) return;
    *open = c10::multiply_integers(before) / known;
  }
  const int64_t heads = sizes[sizes.size() - 2], size = sizes.back();
  if (heads * size != before.back() || heads == 1 || (size == 1 && head_ == 1)) return;
  const bool wrong = head_ > 1 ? size % head_ != 0 : left_open && !asked.load();
  if (!wrong) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is divided over {} ranks ({}), but its {} outputs on this rank are viewed "
                  "as {} heads of {}: a rank has a part of the heads, each of its whole size",
                  layer_, ranks_, line_, before.back(), heads, size),
      {.subject = layer_,
       .hint = "view them as coupler::local_heads(heads) heads, or give the size of a head and let "
               "their number be what is left (-1)"});
}

}  // namespace coupler::tensor_parallel
