// The Accelerator's overhead per step: a loop over a small layer with the Accelerator's accumulate,
// backward, step and zero_grad, against the same loop written in plain LibTorch, in turns in one
// process. Adagrad is the same on both sides, so the loops differ only by the Accelerator; AdamW,
// SGD and Adam are fused by it. Prints "OPTIMIZER HAND OURS" (microseconds per step) per round.
//   bench overhead --rounds N
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <coupler/accelerator.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "program.h"

namespace coupler::bench::overhead {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 4000;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kSteps;
}

template <class Optimizer>
class Comparison {
 public:
  explicit Comparison(coupler::Accelerator& accelerator) : accelerator_(accelerator) {}

  double by_hand() {
    const auto start = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      auto loss = at::mse_loss(plain_->forward(data_), target_);
      loss.backward();
      plain_optimizer_.step();
      plain_optimizer_.zero_grad();
    }
    return microseconds_since(start);
  }

  double ours() {
    const auto start = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      auto step = accelerator_.accumulate(net_);
      auto loss = at::mse_loss(net_->forward(data_), target_);
      accelerator_.backward(loss);
      opt_.step();
      opt_.zero_grad();
    }
    return microseconds_since(start);
  }

 private:
  coupler::Accelerator& accelerator_;
  const at::Tensor data_ = at::randn({4, 8}), target_ = at::randn({4, 8});
  torch::nn::Linear plain_{8, 8}, net_{8, 8};
  Optimizer plain_optimizer_{plain_->parameters(), 1e-3}, optimizer_{net_->parameters(), 1e-3};
  coupler::Optimizer opt_ = std::get<1>(accelerator_.prepare(net_, optimizer_));
};

template <class Optimizer>
void run(coupler::Accelerator& accelerator, const char* name, int rounds) {
  Comparison<Optimizer> comparison(accelerator);
  comparison.by_hand();
  comparison.ours();
  for (int round = 0; round < rounds; ++round) {
    const bool hand_first = round % 2 == 0;
    const double first = hand_first ? comparison.by_hand() : comparison.ours();
    const double second = hand_first ? comparison.ours() : comparison.by_hand();
    std::printf("%s %.4f %.4f\n", name, hand_first ? first : second, hand_first ? second : first);
  }
}

}  // namespace

int program(int argc, char** argv) {
  const int rounds = argc == 3 && std::strcmp(argv[1], "--rounds") == 0 ? std::atoi(argv[2]) : 0;
  if (rounds <= 0) {
    std::fputs("usage: bench overhead --rounds N\n", stderr);
    return 2;
  }
  at::set_num_threads(1);
  coupler::Accelerator accelerator;
  run<torch::optim::Adagrad>(accelerator, "Adagrad", rounds);
  run<torch::optim::AdamW>(accelerator, "AdamW", rounds);
  return 0;
}

const Registration kRegistration("overhead", program);

}  // namespace coupler::bench::overhead
