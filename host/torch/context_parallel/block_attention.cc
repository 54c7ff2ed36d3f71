#include "context_parallel/block_attention.h"

#include <ATen/Functions.h>

#include <limits>
#include <tuple>

namespace coupler::context_parallel {
namespace {

at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

int64_t group_of(const Block& block) { return block.query.size(1) / block.key.size(1); }

// A key head for each query head.
at::Tensor repeated(const at::Tensor& heads, int64_t group) {
  return group == 1 ? heads : heads.repeat_interleave(group, 1);
}

// The gradient of what repeated() was given.
at::Tensor summed(const at::Tensor& gradient, int64_t group) {
  if (group == 1) return gradient;
  return gradient.unflatten(1, {-1, group}).sum(2);
}

at::Tensor scores_of(const Block& block, const at::Tensor& key) {
  const at::ScalarType type = wide_type(block.query);
  at::Tensor scores =
      at::matmul(block.query.to(type), key.to(type).transpose(2, 3)).mul_(block.scale);
  if (!block.causal) return scores;
  const int64_t tokens = scores.size(2);
  const at::Tensor hidden =
      at::ones({tokens, tokens}, scores.options().dtype(at::kBool)).triu_(/*diagonal=*/1);
  return scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

Attended attend(const Block& block) {
  const int64_t group = group_of(block);
  const at::Tensor key = repeated(block.key, group), value = repeated(block.value, group);
  if (block.query.is_cpu()) {
    auto [output, log_weights] = at::_scaled_dot_product_flash_attention_for_cpu(
        block.query, key, value, /*dropout_p=*/0, block.causal, {}, block.scale);
    return {output, log_weights};
  }
  const at::Tensor scores = scores_of(block, key);
  const at::Tensor log_weights = scores.logsumexp(-1);
  const at::Tensor weights = scores.sub_(log_weights.unsqueeze(-1)).exp_();
  return {at::matmul(weights, value.to(weights.scalar_type())), log_weights};
}

void add_block(Attended& all, const Attended& block) {
  const at::ScalarType type = wide_type(block.output);
  if (!all.output.defined()) {
    all = {block.output.to(type), block.log_weights.to(type)};
    return;
  }
  const at::Tensor log_weights = at::logaddexp(all.log_weights, block.log_weights.to(type));
  const auto share = [&](const at::Tensor& of) {
    return of.to(type).sub(log_weights).exp_().unsqueeze(-1);
  };
  all.output.mul_(share(all.log_weights));
  all.output.addcmul_(block.output.to(type), share(block.log_weights));
  all.log_weights.copy_(log_weights);
}

BlockGradients backward(const Block& block, const Attended& all, const at::Tensor& gradient) {
  const int64_t group = group_of(block);
  const at::Tensor key = repeated(block.key, group), value = repeated(block.value, group);
  if (block.query.is_cpu()) {
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, block.query, key, value, all.output, all.log_weights, /*dropout_p=*/0,
        block.causal, {}, block.scale);
    return {of_query, summed(of_key, group), summed(of_value, group)};
  }
  const at::ScalarType type = wide_type(block.query);
  const at::Tensor weights =
      scores_of(block, key).sub_(all.log_weights.to(type).unsqueeze(-1)).exp_();
  const at::Tensor wide = gradient.to(type);
  const at::Tensor of_value = at::matmul(weights.transpose(2, 3), wide);
  const at::Tensor own = wide.mul(all.output.to(type)).sum(-1, /*keepdim=*/true);
  const at::Tensor of_scores =
      at::matmul(wide, value.to(type).transpose(2, 3)).sub_(own).mul_(weights).mul_(block.scale);
  return {at::matmul(of_scores, key.to(type)),
          summed(at::matmul(of_scores.transpose(2, 3), block.query.to(type)), group),
          summed(of_value, group)};
}

}  // namespace coupler::context_parallel
