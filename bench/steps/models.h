// The models, batches and losses of bench/python/models.py in C++, with the same shapes and the
// same values for the same seed. The GPT is from examples/gpt/model.h. Plain functions without
// shared state except LibTorch's global seed.
#pragma once

#include <model.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace coupler::bench {

class MLPImpl : public torch::nn::Module {
 public:
  MLPImpl();
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear l1_, l2_, l3_;
};
TORCH_MODULE(MLP);

// For images of 28 x 28.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl();
  at::Tensor forward(const at::Tensor& x);  // [N, 1, 28, 28]

 private:
  torch::nn::Conv2d first_, second_;
  torch::nn::Linear last_;
};
TORCH_MODULE(ConvNet);

struct Batch {
  at::Tensor data, target;
};

MLP make_mlp();                                 // 0.67 million parameters
ConvNet make_conv_net();                        // 0.02 million
GPT make_gpt();                                 // 10.5 million
GPT make_gpt2_small();                          // the shape of GPT-2 124M, with an untied head
std::vector<Batch> mlp_batches(uint64_t seed);  // of 64 rows
std::vector<Batch> gpt_batches(uint64_t seed);  // of 4 sequences of 64 tokens
std::vector<Batch> gpt2_small_batches(uint64_t seed);  // of 8 sequences of 1024 tokens

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target);

}  // namespace coupler::bench
