// The model of sharding_checks, in float, with what is awkward to shard: odd sizes, a weight tied
// across modules, a frozen parameter next to trainable ones, a buffer. Trains it alongside a
// single-process model on the joined batch. Used like check.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check.h"

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int64_t width = 17);
  torch::Tensor forward(const torch::Tensor& tokens);
  torch::nn::Embedding tokens;
  torch::nn::Linear in, mid, out;  // mid's bias is frozen
  torch::nn::LayerNorm norm;
  torch::nn::Sequential head;  // registers the weight of tokens again
  torch::Tensor scale;         // a buffer
};
TORCH_MODULE(Tower);

constexpr int64_t kTowerRows = 24;  // divisible by world sizes 1 to 4
inline torch::Tensor tower_loss(Tower& net, const Batch& batch) {
  return torch::cross_entropy_loss(net->forward(batch.tokens), batch.targets);
}

// The parameters, the tied one once: with parameters() it would be updated twice.
std::vector<torch::Tensor> distinct(Tower& net);
// A single-process model with the values of a prepared or unprepared one. Collective.
Tower copy_of(Tower& net);

// What the backend does with models, according to --expect.
bool is_gathered();  // parameters are gathered for use
bool is_divided();   // an optimizer holds parts
// Expects that --expect is true, so that no check passes because nothing is sharded. optimizer: a
// prepared one.
void expect_kind(const torch::Tensor& parameter, torch::optim::Optimizer& optimizer);

// The mean of all ranks' losses.
double mean_over_ranks(coupler::Accelerator& accelerator, const torch::Tensor& loss);
void expect_relative(double ours, double reference, double bound, const std::string& what);
void expect_near(const torch::Tensor& ours, const torch::Tensor& reference, double bound,
                 const std::string& what);
// Compares every parameter of two models, using for_each_tensor of the first.
void expect_near_models(coupler::Accelerator& accelerator, Tower& ours, Tower& reference,
                        double bound);

// A prepared Tower and its optimizer, and a single-process copy of both.
struct Pair {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;
  Pair(coupler::Accelerator& accelerator, const Make& make);
  // One step of both over the same rows; returns the losses before the step. between: called after
  // backward, with whether the model is ours.
  struct Losses {
    double ours, reference;
  };
  Losses step(int number, const std::function<void(bool ours)>& between = {});

  coupler::Accelerator& accelerator;
  Tower net, reference;
  std::unique_ptr<torch::optim::Optimizer> torch_optimizer, reference_optimizer;
  std::unique_ptr<coupler::Optimizer> optimizer;
};
// With an eps above rounding: otherwise Adam would take full steps for gradients that are only
// rounding errors.
Pair::Make adamw(double rate = 1e-2);

std::vector<Check> learning_checks();
std::vector<Check> model_checks();
std::vector<Check> access_checks();
std::vector<Check> misuse_checks();
