// The names that the code in the rows of docs/from-accelerate.md assumes; rows.py binds the
// members' names. Used by the training thread.
#pragma once

#include <coupler/big_model.h>
#include <coupler/coupler.h>
#include <coupler/device_map.h>
#include <coupler/launch.h>
#include <coupler/objects.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
  torch::Tensor forward(const torch::Tensor& x) { return head(x); }
};
TORCH_MODULE(Net);

inline torch::Tensor loss_of(Net& net, const torch::data::Example<>& batch) {
  return torch::mse_loss(net->forward(batch.data), batch.target);
}

inline double train(int epochs) { return epochs; }

// A dataset without an index: ten examples, one after the other.
class Stream {
 public:
  std::optional<torch::data::Example<>> next() {
    if (given_ == 10) return std::nullopt;
    ++given_;
    return torch::data::Example<>(torch::ones(4), torch::zeros(2));
  }
  void reset() { given_ = 0; }

 private:
  int given_ = 0;
};

// The examples backwards, and in batches of three and two.
struct Backwards : coupler::Sampler {
  size_t size() const override { return 10; }
  std::vector<size_t> indices() override { return {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}; }
};
struct ThreesAndTwos : coupler::BatchSampler {
  size_t size() const override { return 4; }
  std::vector<std::vector<size_t>> batches() override {
    return {{0, 1, 2}, {3, 4}, {5, 6, 7}, {8, 9}};
  }
};

inline torch::Tensor stack(const std::vector<torch::data::Example<>>& samples) {
  std::vector<torch::Tensor> data;
  for (const auto& sample : samples) data.push_back(sample.data);
  return torch::stack(data);
}

using Loader = coupler::DataLoader<coupler::TensorDataset>;

struct Names {
  coupler::Accelerator& accelerator;
  coupler::TensorDataset dataset;
  Stream stream;
  std::shared_ptr<coupler::Sampler> sampler;
  std::shared_ptr<coupler::BatchSampler> batch_sampler;
  Net model;
  torch::optim::SGD& optimizer;
  Loader loader;
  coupler::Schedule schedule;
  Net net;
  coupler::Optimizer opt;
  Loader batches;
  coupler::Scheduler scheduler;
  torch::data::Example<> batch;
  torch::Tensor x;
  std::string folder;
};

struct Row {
  int line;  // of the page
  void (*run)(Names&);
};
