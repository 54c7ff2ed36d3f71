#include "rows.h"

using coupler::Accelerator;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;

Sequential make_chain() {
  torch::manual_seed(5);
  Sequential chain(Linear(6, 8), Tanh(), Linear(8, 8), Tanh(), Linear(8, 4));
  chain->to(torch::kDouble);
  return chain;
}

Sequential make_tied_chain() {
  torch::manual_seed(6);
  const Linear tied(8, 8);
  Sequential chain(Linear(6, 8), tied, Tanh(), Linear(8, 8), Tanh(), tied, Tanh(), Linear(8, 4));
  chain->to(torch::kDouble);
  return chain;
}

Sequential on_own_values(Accelerator& accelerator, Sequential chain) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : parameters_of(*chain)) item.value().add_(accelerator.rank());
  return chain;
}

Rows joined_rows(int batch) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + batch));
  return {torch::randn({kJoinedRows, 6}, generator, torch::kDouble),
          torch::randint(0, 4, {kJoinedRows}, generator, torch::kLong)};
}

Rows own_rows(Accelerator& accelerator, const Rows& joined, const char* group) {
  const coupler::Mesh& mesh = accelerator.mesh();
  const int64_t rows = kJoinedRows / mesh.size(group);
  return {joined.inputs.narrow(0, mesh.rank(group) * rows, rows),
          joined.targets.narrow(0, mesh.rank(group) * rows, rows)};
}

torch::Tensor loss_of_rows(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output, targets);
}

Expected train_on_rows_alone(Sequential chain, int steps, int batches) {
  // Each parameter once: torch would update a tied one twice.
  const std::vector<torch::Tensor> parameters = parameters_of(*chain).values();
  torch::optim::AdamW optimizer(parameters, 1e-2);
  Expected expected;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int batch = 0; batch < batches; ++batch) {
      const Rows rows = joined_rows(step * batches + batch);
      const auto loss = loss_of_rows(chain->forward(rows.inputs), rows.targets);
      (loss / batches).backward();
      expected.losses.push_back(loss.item<double>());
    }
    expected.norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, 0.1));
    optimizer.step();
  }
  expected.weights = parameters_of(*chain);
  return expected;
}
