#include "diffusion/transformer.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>

#include "nets/attention.h"
#include "nets/layers.h"

namespace coupler::diffusion {
namespace {

struct CrossAttentionImpl : torch::nn::Module {
  // states_width: the width of the attended states.
  CrossAttentionImpl(int64_t width, int64_t of_heads, int64_t states_width) : heads(of_heads) {
    to_q = register_module("to_q", linear(width, width, /*bias=*/false));
    to_k = register_module("to_k", linear(states_width, width, /*bias=*/false));
    to_v = register_module("to_v", linear(states_width, width, /*bias=*/false));
    to_out = register_module("to_out", PartsOf())->add("0", linear(width, width, /*bias=*/true));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& states) {
    const at::Tensor query = split_heads(to_q->forward(x), heads);
    const at::Tensor key = split_heads(to_k->forward(states), heads);
    const at::Tensor value = split_heads(to_v->forward(states), heads);
    const at::Tensor seen = at::scaled_dot_product_attention(query, key, value);
    return to_out->forward(seen.transpose(1, 2).flatten(2));
  }
  int64_t heads;
  torch::nn::Linear to_q{nullptr}, to_k{nullptr}, to_v{nullptr}, to_out{nullptr};
};
TORCH_MODULE(CrossAttention);

}  // namespace

// Input and output: [batch, pixels, width].
struct TransformerBlockImpl : torch::nn::Module {
  explicit TransformerBlockImpl(const TransformerOptions& o) {
    const auto norm = [&] { return layer_norm(o.channels, 1e-5); };
    norm1 = register_module("norm1", norm());
    attention1 = register_module("attn1", CrossAttention(o.channels, o.heads, o.channels));
    norm2 = register_module("norm2", norm());
    attention2 = register_module("attn2", CrossAttention(o.channels, o.heads, o.text_width));
    norm3 = register_module("norm3", norm());
    PartsOf net = register_module("ff", PartsOf())->add("net", PartsOf());
    wide = net->add("0", PartsOf())->add("proj", linear(o.channels, 8 * o.channels, true));
    narrow = net->add("2", linear(4 * o.channels, o.channels, true));
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& states) {
    at::Tensor y = norm1->forward(x);
    x = attention1->forward(y, y).add_(x);
    x = attention2->forward(norm2->forward(x), states).add_(x);
    y = wide->forward(norm3->forward(x));
    const auto halves = y.chunk(2, -1);
    y = at::gelu(halves[1]).mul_(halves[0]);
    return narrow->forward(y).add_(x);
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr}, norm3{nullptr};
  CrossAttention attention1{nullptr}, attention2{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
};

TransformerImpl::TransformerImpl(const TransformerOptions& o) : Module("Transformer2DModel") {
  norm_ = register_module("norm", group_norm(o.groups, o.channels, 1e-6));
  if (o.linear) {
    linear_in_ = register_module("proj_in", linear(o.channels, o.channels, true));
  } else {
    conv_in_ = register_module("proj_in", convolution(o.channels, o.channels, 1));
  }
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < o.layers; ++i) {
    blocks_.push_back(std::make_shared<TransformerBlockImpl>(o));
    blocks->push_back(blocks_.back());
  }
  register_module("transformer_blocks", blocks);
  if (o.linear) {
    linear_out_ = register_module("proj_out", linear(o.channels, o.channels, true));
  } else {
    conv_out_ = register_module("proj_out", convolution(o.channels, o.channels, 1));
  }
}

at::Tensor TransformerImpl::forward(const at::Tensor& x, const at::Tensor& states) {
  const auto pixels = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
  const auto image = [&](const at::Tensor& rows) { return rows.transpose(1, 2).reshape_as(x); };
  at::Tensor y = norm_->forward(x);
  y = linear_in_ ? linear_in_->forward(pixels(y)) : pixels(conv_in_->forward(y)).contiguous();
  for (const auto& block : blocks_) y = block->forward(std::move(y), states);
  y = linear_out_ ? image(linear_out_->forward(y)) : conv_out_->forward(image(y));
  return y.add_(x);
}

}  // namespace coupler::diffusion
