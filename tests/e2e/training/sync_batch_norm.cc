// SyncBatchNorm over W ranks equals torch's BatchNorm over the joined batch: output, gradients,
// running statistics. In evaluation it equals BatchNorm on each rank's own batch.
#include <coupler/sync_batch_norm.h>

#include "check.h"

namespace {

template <class BatchNorm>
void equals_batch_norm(coupler::Accelerator& accelerator, std::vector<int64_t> shape) {
  const int64_t rows = 2;
  shape[0] = rows * accelerator.world_size();
  auto generator = at::detail::createCPUGenerator(7);
  const auto joined = torch::randn(shape, generator, torch::kDouble) * 3 + 100;
  const auto upstream = torch::randn(shape, generator, torch::kDouble);
  auto mine = [&](const torch::Tensor& all) {
    return all.narrow(0, accelerator.rank() * rows, rows);
  };

  BatchNorm reference(shape[1]);
  coupler::SyncBatchNorm ours(shape[1]);
  reference->to(torch::kDouble);
  ours->to(torch::kDouble);
  auto close = [](const torch::Tensor& a, const torch::Tensor& b, const char* what) {
    EXPECT(torch::allclose(a, b, 1e-9, 1e-9), std::string(what) + " differs from BatchNorm's");
  };
  for (int step = 0; step < 2; ++step) {
    auto x = joined.clone().requires_grad_(), own = mine(joined).clone().requires_grad_();
    reference->zero_grad();
    ours->zero_grad();
    const auto expected = reference(x), got = ours(own);
    close(got, mine(expected), "the output");
    expected.backward(upstream);
    got.backward(mine(upstream));
    close(own.grad(), mine(x.grad()), "the input's gradient");
    close(accelerator.reduce(ours->weight.grad()), reference->weight.grad(),
          "the weight's gradient");
    close(ours->running_mean, reference->running_mean, "running_mean");
    close(ours->running_var, reference->running_var, "running_var");
  }
  reference->eval();
  ours->eval();
  close(ours(mine(joined)), reference(mine(joined)), "the output in evaluation");
  if (accelerator.world_size() == 1) return;
  ours->train();
  const auto own = mine(joined).clone().requires_grad_();
  const std::string said = error_of(
      [&] { torch::autograd::grad({ours(own).sum()}, {own}, {}, true, /*create_graph=*/true); });
  EXPECT(said.find("gradients of gradients") != std::string::npos, said);
}

}  // namespace

std::vector<Check> sync_batch_norm_checks() {
  return {
      {"sync_batch_norm_1d",
       [](auto& a) {
         equals_batch_norm<torch::nn::BatchNorm1d>(a, {0, 5});
       }},
      {"sync_batch_norm_2d",
       [](auto& a) {
         equals_batch_norm<torch::nn::BatchNorm2d>(a, {0, 3, 4, 2});
       }},
  };
}

std::vector<Check> all_checks() {
  std::vector<Check> result;
  for (const auto& list : {parity_checks(),
                           accumulation_checks(),
                           behavior_checks(),
                           step_argument_checks(),
                           collectives_checks(),
                           metrics_checks(),
                           process_checks(),
                           sync_batch_norm_checks(),
                           loader_checks(),
                           precision_checks(),
                           scheduler_checks(),
                           sample_checks(),
                           activation_checkpoint_checks(),
                           weight_checks(),
                           checkpoint_checks(),
                           in_backward_checks(),
                           big_model_checks(),
                           comm_hook_checks(),
                           communication_checks(),
                           adapter_checks()}) {
    result.insert(result.end(), list.begin(), list.end());
  }
  return result;
}
