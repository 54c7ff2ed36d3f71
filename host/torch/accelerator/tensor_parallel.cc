// The public functions of coupler/tensor_parallel.h that need the Accelerator's tensor group, and
// how the Accelerator divides models.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/tensor_parallel.h>
#include <fmt/format.h>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "tensor_parallel/cross_entropy.h"
#include "tensor_parallel/divide.h"
#include "tensor_parallel/heads_check.h"

namespace coupler {

void Accelerator::Impl::divide_layers(strategy::Model& model,
                                      const std::vector<sharding::PlannedLayers>& own_plan) {
  if (groups->mesh().size("tensor") == 1) return;
  std::vector<sharding::PlannedLayers> plan;
  for (const std::string& line : config.parallel.tensor_plan)
    plan.push_back(sharding::planned_layers(line));
  if (plan.empty() && own_plan.empty()) {
    fail_config(fmt::format("parallel.tensor is {}, but nothing says how the layers of the model "
                            "'{}' are divided",
                            groups->mesh().size("tensor"), model.name),
                "parallel.tensor",
                "set parallel.tensor_plan, such as [\"layers.*.up = colwise\", \"layers.*.down = "
                "rowwise\"], let the model have a plan (coupler/tensor_parallel.h), or set "
                "parallel.tensor to 1");
  }
  if (tensor_comm == nullptr) tensor_comm = groups->make(groups::kTensor, "divided layers");
  tensor_parallel::divide(model, {plan, own_plan}, tensor_comm);
}

int64_t local_heads(int64_t heads) {
  const Accelerator* const accelerator = current_accelerator();
  const int ranks = accelerator == nullptr ? 1 : accelerator->mesh().size("tensor");
  if (heads % ranks != 0) {
    fail_argument(
        fmt::format("local_heads: {} heads cannot be divided over {} ranks", heads, ranks),
        "parallel.tensor", "choose a parallel.tensor that divides the number of heads");
  }
  tensor_parallel::asked_for_heads();
  return heads / ranks;
}

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const ParallelCrossEntropyOptions& options) {
  const tensor_parallel::Group group = current_tensor_group();
  if (group != nullptr) return tensor_parallel::cross_entropy(logits, target, options, group);
  const bool narrow = c10::elementSize(logits.scalar_type()) < 4;
  return at::cross_entropy_loss(narrow ? logits.to(at::kFloat) : logits, target, {},
                                options.reduction, options.ignore_index);
}

}  // namespace coupler
