// The public modules and functions of coupler/tensor_parallel.h that need no group.
#include <coupler/tensor_parallel.h>

#include "sharding/decoder_plan.h"
#include "tensor_parallel/module_plan.h"

namespace coupler {

TensorPlan ColumnParallelLinearImpl::tensor_plan(int) const {
  return {{"", gather_output_ ? "colwise_gather" : "colwise"}};
}
TensorPlan RowParallelLinearImpl::tensor_plan(int) const {
  return {{"", input_is_parallel_ ? "rowwise" : "rowwise_split"}};
}
TensorPlan VocabParallelEmbeddingImpl::tensor_plan(int) const { return {{"", "vocab"}}; }

}  // namespace coupler

namespace coupler::tensor_parallel {

namespace {

void add_plan(const torch::nn::Module& module, const std::string& prefix, int ranks,
              std::vector<sharding::PlannedLayers>& into) {
  const auto* const own = dynamic_cast<const TensorParallelLayers*>(&module);
  if (own == nullptr) return;
  for (const TensorRule& rule : own->tensor_plan(ranks)) {
    into.push_back(sharding::planned_layers({rule.pattern, rule.style, rule.multiple}, prefix));
  }
}

}  // namespace

std::vector<sharding::PlannedLayers> plan_of(const torch::nn::Module& model, int ranks) {
  std::vector<sharding::PlannedLayers> result;
  if (ranks == 1) return result;
  add_plan(model, "", ranks, result);
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    add_plan(*item.value(), item.key(), ranks, result);
  return result;
}

}  // namespace coupler::tensor_parallel
