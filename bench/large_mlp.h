// The MLP of 201 million parameters for the memory and checkpoint benchmarks;
// bench/python/models.py has the same model in Python.
#pragma once

#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

class LargeMLPImpl : public torch::nn::Module {
 public:
  static constexpr int64_t kWidth = 4096;
  static constexpr int kLayers = 12;

  explicit LargeMLPImpl(int64_t width = kWidth)
      : blocks_(register_module("blocks", torch::nn::ModuleList())) {
    for (int i = 0; i < kLayers; ++i) blocks_->push_back(torch::nn::Linear(width, width));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks_) x = at::relu(block->as<torch::nn::Linear>()->forward(x));
    return x;
  }

 private:
  torch::nn::ModuleList blocks_;
};
TORCH_MODULE(LargeMLP);
