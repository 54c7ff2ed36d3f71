// The names that the program fragments in docs/ assume; fragments.py binds the members' names. All
// fragments are compiled; big_models_page.cc runs those of one page.
#pragma once

#include <coupler/big_model.h>
#include <coupler/compiled_model.h>
#include <coupler/coupler.h>
#include <coupler/launch.h>
#include <coupler/optimizers.h>
#include <coupler/text.h>
#include <coupler/text_to_image.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>

#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 10));
  torch::Tensor forward(const torch::Tensor& x) { return head(x); }
};
TORCH_MODULE(Net);
using Block = Net;

using Sample = torch::data::Example<>;

// Takes part in checkpoints in addition to model and optimizer.
struct AverageOfWeights {
  void save(coupler::StateDict& state) const { state.set("steps", steps); }
  void load(const coupler::StateDict& state) { steps = state.integer("steps"); }
  int64_t steps = 0;
};

using Loader = coupler::DataLoader<coupler::TensorDataset>;

struct Names {
  coupler::Accelerator& accelerator;
  Net model;
  torch::optim::AdamW optimizer;
  Loader loader;
  Net net;
  coupler::Optimizer opt;
  Loader batches;
  coupler::Scheduler scheduler;
  torch::data::Example<> batch;
  torch::Tensor loss_sum;
  double tokens;
  double validation_loss;
  torch::nn::ModuleList blocks;
  torch::Tensor hidden;
  coupler::DeviceMapOptions options;
  int64_t epochs;
  AverageOfWeights average_of_weights;
};

struct Fragment {
  std::string page;  // "big-models"
  int line;
  bool needs_gpu;
  void (*run)(Names&);
  std::string prints;  // the output that the page shows; "" if none
};

// Defined by programs that run fragments.
torch::Tensor loss_of(Net& net, const torch::data::Example<>& batch);
void train(coupler::Accelerator& accelerator, int64_t batch_size);
std::shared_ptr<torch::nn::Module> make_gpt();
