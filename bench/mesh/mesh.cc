// Training steps of a model that a mesh divides, in turns with the whole one in one process, driven
// by bench/run: bench mesh --control SOCKET --model MODEL, plus configuration arguments. One thread
// per process. Models: products, an MLP of width 2048; attention, a GPT with sequences of 1024;
// tensor and context, GPTs that bench/python/mesh_in_turns.py trains likewise; context_half, the
// latter on one of its two sequences.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/tensor_parallel.h>
#include <model.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control.h"
#include "divided_gpt.h"
#include "program.h"

namespace coupler::bench::mesh {
namespace {

constexpr int64_t kWidth = 2048, kInner = 8192, kRows = 256;
constexpr int kBlocks = 2;

struct ProductsImpl : torch::nn::Module, TensorParallelLayers {
  ProductsImpl() {
    for (int i = 0; i < kBlocks; ++i) {
      ups->push_back(torch::nn::Linear(kWidth, kInner));
      downs->push_back(torch::nn::Linear(kInner, kWidth));
    }
    register_module("ups", ups);
    register_module("downs", downs);
  }
  TensorPlan tensor_plan(int) const override {
    return {{"ups.*", "colwise"}, {"downs.*", "rowwise"}};
  }
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < kBlocks; ++i) {
      const at::Tensor inner = at::relu(ups[i]->as<torch::nn::Linear>()->forward(x));
      x = x + downs[i]->as<torch::nn::Linear>()->forward(inner);
    }
    return x;
  }
  torch::nn::ModuleList ups, downs;
};
TORCH_MODULE(Products);

// One step of training; returns the loss.
using Step = std::function<double()>;

Step products(Accelerator& accelerator) {
  Products model;
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 1e-4);
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor data = at::randn({kRows, kWidth}, generator, at::TensorOptions());
  return [&accelerator, net = net, opt = opt, optimizer, data]() mutable {
    const at::Tensor loss = net->forward(data).square().mean();
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
    return loss.item<double>();
  };
}

// Steps on the same `rows` random texts.
template <class Model, class Optimizer>
Step train_on_text(Accelerator& accelerator, Model model, std::shared_ptr<Optimizer> optimizer,
                   const GPTOptions& options, int64_t rows) {
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor text =
      at::randint(options.vocabulary, {rows, options.sequence + 1}, generator, at::kLong);
  const at::Tensor data = text.slice(1, 0, options.sequence).contiguous();
  const at::Tensor target = text.slice(1, 1, options.sequence + 1).contiguous();
  return [&accelerator, net = net, opt = opt, optimizer, data, target]() mutable {
    at::Tensor loss;
    {
      const auto part = accelerator.context_parallel({{data, 1}, {target, 1}});
      loss = at::cross_entropy_loss(net->forward(data).flatten(0, 1), target.flatten());
      accelerator.backward(loss);
    }
    opt.step();
    opt.zero_grad();
    return accelerator.reduce(loss.detach(), ReduceOp::kMean).template item<double>();
  };
}

// Two of 1024 tokens.
constexpr GPTOptions kLongTexts{
    .vocabulary = 256, .width = 256, .layers = 2, .heads = 4, .sequence = 1024};
// The shape of bench/steps' GPT of 10.5 million parameters.
constexpr GPTOptions kShortTexts{
    .vocabulary = 8192, .width = 256, .layers = 8, .heads = 4, .sequence = 64};

Step attention(Accelerator& accelerator) {
  GPT model(kLongTexts);
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 1e-2);
  return train_on_text(accelerator, model, optimizer, kLongTexts, 2);
}

Step divided(Accelerator& accelerator, const GPTOptions& options, int64_t rows) {
  DividedGPT model(options);
  const auto optimizer =
      std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-4));
  return train_on_text(accelerator, model, optimizer, options, rows);
}

Step step_of(Accelerator& accelerator, const std::string& model) {
  if (model == "products") return products(accelerator);
  if (model == "attention") return attention(accelerator);
  if (model == "tensor") return divided(accelerator, kShortTexts, 4);
  if (model == "context") return divided(accelerator, kLongTexts, 2);
  if (model == "context_half") return divided(accelerator, kLongTexts, 1);
  throw Error(
      ErrorCode::kUsage, "no model '" + model + "'",
      {.subject = "bench mesh", .hint = "products, attention, tensor, context or context_half"});
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET --model MODEL");
  at::set_num_threads(1);
  torch::manual_seed(0);
  const Step step = step_of(accelerator, values[1]);
  double loss = 0;
  Control control(values[0]);
  control.serve(accelerator.rank(), 0,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train =
                     [&](const std::string&, int64_t steps) {
                       for (int64_t i = 0; i < steps; ++i) loss = step();
                       accelerator.wait_for_everyone();
                     },
                 .loss = [&] { return loss; }});
  return 0;
}

const Registration kRegistration("mesh", program);

}  // namespace coupler::bench::mesh
