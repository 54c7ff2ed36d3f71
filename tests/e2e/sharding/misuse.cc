// Ranks that diverge, which ends the job. sharding_test runs each check as its own job and reads
// the output. main() prints the error and ends the rank.
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "tower.h"

namespace {

using coupler::Accelerator;

// The given rank reads a parameter; the others wait for everyone.
void touched_by(Accelerator& accelerator, int rank) {
  Pair pair(accelerator, adamw());
  pair.step(0);
  if (accelerator.rank() == rank) pair.net->in->weight.sum().item<float>();
  accelerator.wait_for_everyone();
}

void other_shape_on_rank_1(Accelerator& accelerator) {
  Tower model(accelerator.rank() == 1 ? 19 : 17);
  accelerator.prepare(model);
}

void other_number_of_layers_on_rank_1(Accelerator& accelerator) {
  torch::nn::Sequential model(torch::nn::Linear(3, 3));
  if (accelerator.rank() == 1) model->push_back(torch::nn::Linear(3, 3));
  accelerator.prepare(model);
}

// During backward: after the first gathers and before the last reductions.
void killed_in_backward(Accelerator& accelerator) {
  Pair pair(accelerator, adamw());
  std::fprintf(stderr, "pid %d\n", static_cast<int>(getpid()));
  for (int step = 0; step < 3; ++step) pair.step(step);
  auto hidden = pair.net->in(pair.net->tokens(joined_batch(0, 4).tokens).sum(1));
  hidden.register_hook([&](const torch::Tensor&) {
    if (accelerator.rank() == 1) raise(SIGKILL);
  });
  accelerator.backward(pair.net->mid(hidden).sum());
  accelerator.wait_for_everyone();
}

}  // namespace

std::vector<Check> misuse_checks() {
  return {
      {"touched_by_rank_0", [](auto& a) { touched_by(a, 0); }, true},
      {"touched_by_rank_1", [](auto& a) { touched_by(a, 1); }, true},
      {"other_shape_on_rank_1", other_shape_on_rank_1, true},
      {"other_number_of_layers_on_rank_1", other_number_of_layers_on_rank_1, true},
      {"killed_in_backward", killed_in_backward, true},
  };
}
