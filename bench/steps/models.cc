#include "models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/utils.h>

namespace coupler::bench {
namespace {

constexpr int kBatches = 8;
constexpr int64_t kVocabulary = 8192, kSequence = 64;

}  // namespace

MLPImpl::MLPImpl()
    : l1_(register_module("l1", torch::nn::Linear(784, 512))),
      l2_(register_module("l2", torch::nn::Linear(512, 512))),
      l3_(register_module("l3", torch::nn::Linear(512, 10))) {}

at::Tensor MLPImpl::forward(const at::Tensor& x) { return l3_(at::relu(l2_(at::relu(l1_(x))))); }

ConvNetImpl::ConvNetImpl()
    : first_(register_module("first", torch::nn::Conv2d(1, 16, 3))),
      second_(register_module("second", torch::nn::Conv2d(16, 32, 3))),
      last_(register_module("last", torch::nn::Linear(32 * 25, 10))) {}

at::Tensor ConvNetImpl::forward(const at::Tensor& x) {
  const at::Tensor halved = at::max_pool2d(at::relu(first_(x)), 2);
  return last_(at::max_pool2d(at::relu(second_(halved)), 2).flatten(1));
}

ConvNet make_conv_net() {
  torch::manual_seed(0);
  return {};
}

MLP make_mlp() {
  torch::manual_seed(0);
  return {};
}

// The constructor initializes the head before the blocks; Python's does so after them.
static GPT drawn_as_in_python(const GPTOptions& options) {
  GPT model(options);
  torch::manual_seed(0);
  for (const auto& module : model->modules()) {
    if (auto* linear = module->as<torch::nn::Linear>()) linear->reset_parameters();
    if (auto* embedding = module->as<torch::nn::Embedding>()) embedding->reset_parameters();
  }
  return model;
}

GPT make_gpt() {
  return drawn_as_in_python(GPTOptions{
      .vocabulary = kVocabulary, .width = 256, .layers = 8, .heads = 4, .sequence = kSequence});
}

GPT make_gpt2_small() {
  return drawn_as_in_python(
      GPTOptions{.vocabulary = 50304, .width = 768, .layers = 12, .heads = 12, .sequence = 1024});
}

std::vector<Batch> mlp_batches(uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) {
    at::Tensor data = at::randn({64, 784}, generator);
    batches.push_back({data, at::randint(10, {64}, generator, at::kLong)});
  }
  return batches;
}

static std::vector<Batch> text_batches(uint64_t seed, int64_t vocabulary, int64_t rows,
                                       int64_t sequence) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) {
    const at::Tensor text = at::randint(vocabulary, {rows, sequence + 1}, generator, at::kLong);
    batches.push_back(
        {text.slice(1, 0, sequence).contiguous(), text.slice(1, 1, sequence + 1).contiguous()});
  }
  return batches;
}

std::vector<Batch> gpt_batches(uint64_t seed) {
  return text_batches(seed, kVocabulary, 4, kSequence);
}

std::vector<Batch> gpt2_small_batches(uint64_t seed) { return text_batches(seed, 50304, 8, 1024); }

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape(-1));
}

}  // namespace coupler::bench
