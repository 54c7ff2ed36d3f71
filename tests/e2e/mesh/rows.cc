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
  shift(*chain, accelerator.rank());
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
  const auto loss_of = [&](int batch) {
    const Rows rows = joined_rows(batch);
    return loss_of_rows(chain->forward(rows.inputs), rows.targets);
  };
  return train_alone(*chain, steps, loss_of, batches);
}
