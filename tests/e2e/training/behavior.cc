// What a training step does in addition to reducing gradients: accumulation, parameters without
// gradients, buffers, collectives on tensors; and the errors of wrong calls.
#include <coupler/coupler.h>

#include <limits>

#include "check.h"

namespace {

using coupler::Accelerator;

struct BranchImpl : torch::nn::Module {
  BranchImpl() {
    for (auto* linear : {&left, &right, &never}) to(torch::kDouble), (*linear)->to(torch::kDouble);
  }
  torch::nn::Linear left = register_module("left", torch::nn::Linear(3, 3));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(3, 3));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(3, 3));
};
TORCH_MODULE(Branch);

torch::Tensor input_of(int rank) { return torch::full({2, 3}, 1.0 + rank, torch::kDouble); }

// Rank 0 uses `left`, the others `right`; no rank uses `never`.
void unused_parameters(Accelerator& accelerator) {
  torch::manual_seed(0);
  Branch model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto before = net->never->weight.detach().clone();
  for (int step = 0; step < 3; ++step) {
    auto& branch = accelerator.rank() == 0 ? net->left : net->right;
    accelerator.backward(branch(input_of(accelerator.rank())).sum());
    EXPECT(!accelerator.gradient(net->never->weight).defined(),
           "a parameter that no rank used has a gradient");
    EXPECT(accelerator.gradient(net->left->weight).defined(),
           "a parameter that only rank 0 used has no gradient here");
    const double expected =
        2.0 / accelerator.world_size();  // two rows of ones from rank 0, averaged
    EXPECT(
        std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() - expected) < 1e-12,
        "the gradient of a parameter that only rank 0 used is not the average");
    opt.step();
    opt.zero_grad();
  }
  EXPECT(torch::equal(before, net->never->weight), "a parameter that no rank used was updated");
  expect_same_everywhere(accelerator, net->left->weight, "the left weight");
  expect_same_everywhere(accelerator, net->right->weight, "the right weight");
}

// If backward reaches no parameter on the last rank, the others do not wait forever.
void untouched_rank(Accelerator& accelerator) {
  Branch model;
  auto net = accelerator.prepare(model);
  const bool last =
      accelerator.world_size() > 1 && accelerator.rank() == accelerator.world_size() - 1;
  auto other = torch::ones({1}, torch::requires_grad());
  auto step = accelerator.accumulate(net);  // assigns this backward to the model
  // If parameters are gathered from all ranks, all ranks must take part in forward.
  const auto loss = net->left(input_of(0)).sum();
  accelerator.backward(last ? other.sum() : loss);
  const double expected = accelerator.world_size() == 1
                              ? 2.0
                              : 2.0 * (accelerator.world_size() - 1) / accelerator.world_size();
  EXPECT(std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() - expected) < 1e-12,
         "a rank that used no parameter did not count as zeros");
}

// Four micro-batches in two windows equal two full batches; within a window nothing is sent.
void two_windows(Accelerator& accelerator) {
  torch::manual_seed(1);
  Branch model;
  auto net = accelerator.prepare(model);
  auto loss = [&](double scale) { return net->left(input_of(accelerator.rank()) * scale).sum(); };
  {
    auto scope = accelerator.no_sync(net);
    accelerator.backward(loss(1));
    EXPECT(std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() -
                    2.0 * (1 + accelerator.rank())) < 1e-12,
           "no_sync: the gradient is not this rank's own");
  }
  accelerator.backward(loss(2));
  double mean = 0;
  for (int rank = 0; rank < accelerator.world_size(); ++rank) mean += 6.0 * (1 + rank);
  mean /= accelerator.world_size();
  EXPECT(std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() - mean) < 1e-12,
         "after no_sync and a synchronized backward the gradient is not the mean of the sums");
  // Without zero_grad the next backward adds to the average, as in torch's DDP.
  accelerator.backward(loss(2));
  EXPECT(
      std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() - mean * 5 / 3) < 1e-12,
      "a second backward without zero_grad does not accumulate");
}

// An exception of the program during backward affects only that backward.
void error_in_backward(Accelerator& accelerator) {
  Branch model;
  auto net = accelerator.prepare(model);
  const auto input = input_of(accelerator.rank());
  auto hidden = net->left(input);
  hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("the user's own"); });
  // `right` gets its gradient before the hook throws.
  try {
    accelerator.backward(net->right(input).sum() + hidden.sum());
    EXPECT(false, "the hook's error was lost");
  } catch (const std::runtime_error& error) {
    EXPECT(std::string(error.what()).find("the user's own") != std::string::npos, error.what());
  }
  for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
  accelerator.backward(net->left(input).sum());
  EXPECT(std::abs(accelerator.gradient(net->left->weight)[0][0].item<double>() -
                  (1.0 + accelerator.world_size())) < 1e-12,
         "the backward after the failed one does not average");
}

void buffers_follow_rank_0(Accelerator& accelerator) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  auto net = accelerator.prepare(model);
  torch::manual_seed(accelerator.rank());
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(net->forward(torch::randn({8, 4})).square().sum());
    for (auto& buffer : net->buffers()) expect_same_everywhere(accelerator, buffer, "a buffer");
  }
}

void tensor_collectives(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const auto gathered = accelerator.gather(torch::full({2, 3}, rank, torch::kInt));
  EXPECT(gathered.sizes() == torch::IntArrayRef({2 * world_size, 3}), "gather: wrong shape");
  for (int r = 0; r < world_size; ++r)
    EXPECT(gathered[2 * r][0].item<int>() == r, "gather: wrong row");
  EXPECT(accelerator.gather(torch::tensor(rank)).numel() == world_size, "gather of a scalar");
  const double sum = world_size * (world_size + 1) / 2.0;
  const auto mine = torch::tensor({1.0 + rank});
  EXPECT(accelerator.reduce(mine).item<double>() == sum, "reduce sum");
  EXPECT(std::abs(accelerator.reduce(mine, coupler::ReduceOp::kMean).item<double>() -
                  sum / world_size) < 1e-6,
         "reduce mean");
  EXPECT(accelerator.reduce(mine, coupler::ReduceOp::kMax).item<double>() == world_size,
         "reduce max");
  EXPECT(accelerator.broadcast(mine, world_size - 1).item<double>() == world_size, "broadcast");
  const auto strided = torch::arange(6).view({2, 3}).t();
  EXPECT(torch::equal(accelerator.broadcast(strided, 0), strided), "broadcast of a strided tensor");
  accelerator.wait_for_everyone();
}

void loader_shares_the_epoch(Accelerator& accelerator) {
  const int64_t rows = 12 * accelerator.world_size();
  auto data = torch::arange(rows);
  auto loader =
      coupler::data_loader(coupler::TensorDataset(data, data), {.batch_size = 4, .shuffle = true});
  auto batches = accelerator.prepare(loader);
  std::vector<torch::Tensor> seen;
  for (auto& batch : batches) seen.push_back(accelerator.gather(batch.data));
  EXPECT(batches.size() == 3 && seen.size() == 3, "the loader's size differs from what it yields");
  EXPECT(torch::equal(std::get<0>(torch::cat(seen).sort()), data),
         "an epoch over all ranks does not have every sample once");
}

void wrong_calls(Accelerator& accelerator) {
  auto contains = [](const std::string& text, const std::string& part) {
    EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
  };
  torch::nn::Sequential empty(torch::nn::ReLU{});
  contains(error_of([&] { accelerator.prepare(empty); }), "has no parameters");
  if (accelerator.world_size() > 1) {
    torch::nn::Linear uneven(3, accelerator.rank() == 0 ? 2 : 4);
    const std::string text = error_of([&] { accelerator.prepare(uneven); });
    contains(text, "the ranks differ in");
    contains(text, "on rank 0");
    contains(text, "[2, 3]");
  }
  Branch model, other;
  torch::optim::SGD foreign(other->parameters(), 0.1), own(model->parameters(), 0.1);
  contains(error_of([&] { auto scope = accelerator.accumulate(model); }), "was not prepared");
  accelerator.prepare(model);
  contains(error_of([&] { accelerator.prepare(model); }), "prepared twice");
  contains(error_of([&] { accelerator.prepare(foreign); }), "belongs to no prepared model");
  const auto held = accelerator.prepare(own);
  contains(error_of([&] { accelerator.prepare(own); }), "an optimizer was prepared twice");
  contains(error_of([&] { accelerator.clip_grad_norm(model, 0); }), "must be above 0");
  contains(error_of([&] { accelerator.gather(torch::ones({2}, torch::kComplexFloat)); }),
           "cannot be sent between ranks");
  contains(error_of([&] { accelerator.reduce(torch::ones({2, 2}).to_sparse()); }), "not dense");
}

// A new optimizer for each phase of training, all at the same address, for one model.
void optimizer_for_each_phase(Accelerator& accelerator) {
  torch::manual_seed(4);
  torch::nn::Linear model(3, 2);
  auto net = accelerator.prepare(model);
  double last = std::numeric_limits<double>::infinity();
  for (const double rate : {0.1, 0.05, 0.02}) {
    torch::optim::SGD optimizer(net->parameters(), rate);
    auto opt = accelerator.prepare(optimizer);
    for (int step = 0; step < 3; ++step) {
      auto loss = net->forward(torch::ones({4, 3})).square().mean();
      EXPECT(loss.item<double>() < last,
             "the loss does not fall in the phase of rate " + std::to_string(rate));
      last = loss.item<double>();
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  }
}

void objects_come_back_in_order(Accelerator& accelerator) {
  Branch model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  int number = 7;
  auto [text, net, count, opt] = accelerator.prepare(std::string("kept"), model, number, optimizer);
  static_assert(std::is_same_v<decltype(net), Branch>);
  EXPECT(text == "kept" && net.ptr() == model.ptr() && &count == &number,
         "it differs from the argument");
}

}  // namespace

std::vector<Check> behavior_checks() {
  return {
      {"unused_parameters", unused_parameters},
      {"untouched_rank", untouched_rank},
      {"accumulation", two_windows},
      {"error_in_backward", error_in_backward},
      {"buffers_follow_rank_0", buffers_follow_rank_0},
      {"tensor_collectives", tensor_collectives},
      {"loader_shares_the_epoch", loader_shares_the_epoch},
      {"wrong_calls", wrong_calls},
      {"optimizer_for_each_phase", optimizer_for_each_phase},
      {"objects_come_back_in_order", objects_come_back_in_order},
  };
}
