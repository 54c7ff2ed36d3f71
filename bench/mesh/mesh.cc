// Training steps of a model that a mesh divides, in turns with the whole one in one process, driven
// by bench/run: bench mesh --control SOCKET --model MODEL, plus configuration arguments. One thread
// per process. Models: products, an MLP of width 2048; attention, a GPT with sequences of 1024.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <coupler/accelerator.h>
#include <coupler/tensor_parallel.h>
#include <model.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control.h"
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

Step attention(Accelerator& accelerator) {
  constexpr int64_t kVocabulary = 256, kSequence = 1024;
  GPT model(GPTOptions{
      .vocabulary = kVocabulary, .width = 256, .layers = 2, .heads = 4, .sequence = kSequence});
  const auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 1e-2);
  auto [net, opt] = accelerator.prepare(model, *optimizer);
  auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor text = at::randint(kVocabulary, {2, kSequence + 1}, generator, at::kLong);
  const at::Tensor data = text.slice(1, 0, kSequence).contiguous();
  const at::Tensor target = text.slice(1, 1, kSequence + 1).contiguous();
  return [&accelerator, net = net, opt = opt, optimizer, data, target]() mutable {
    at::Tensor loss;
    {
      const auto part = accelerator.context_parallel({{data, 1}, {target, 1}});
      loss = at::cross_entropy_loss(net->forward(data).flatten(0, 1), target.flatten());
      accelerator.backward(loss);
    }
    opt.step();
    opt.zero_grad();
    return accelerator.reduce(loss.detach(), ReduceOp::kMean).item<double>();
  };
}

}  // namespace

int program(int argc, char** argv) {
  Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--control SOCKET --model MODEL");
  at::set_num_threads(1);
  torch::manual_seed(0);
  const Step step = values[1] == "products" ? products(accelerator) : attention(accelerator);
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
