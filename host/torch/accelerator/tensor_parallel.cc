// The public functions of coupler/tensor_parallel.h that need the Accelerator's tensor group, and
// how the Accelerator divides models.
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/tensor_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "tensor_parallel/cross_entropy.h"
#include "tensor_parallel/divide.h"
#include "tensor_parallel/exchange.h"
#include "tensor_parallel/heads_check.h"

namespace coupler {
namespace {

int64_t dimension_of_tokens(const at::Tensor& x, int64_t dim, const char* caller) {
  if (x.defined() && dim >= -x.dim() && dim < x.dim()) return dim < 0 ? dim + x.dim() : dim;
  fail_argument(x.defined() ? fmt::format("{}: [{}] has no dimension {}", caller,
                                          fmt::join(x.sizes(), ", "), dim)
                            : fmt::format("{}: the tensor is undefined", caller),
                "dim", "name the dimension of the tokens");
}

// A model's own plan may say what its modules do if the sequence is divided, but the job's asks for
// it.
void refuse_parts_of_sequence(const sharding::PlannedLayers& line) {
  using sharding::TensorStyle;
  const TensorStyle style = line.style.style;
  if (style != TensorStyle::kSequence && style != TensorStyle::kGatherSequence) return;
  fail_config(
      fmt::format("{} is about a part of the sequence, but parallel.sequence is false", line.text),
      "parallel.tensor_plan", "set parallel.sequence to true, or write replicate");
}

tensor_parallel::Group sequence_group(const char* caller) {
  if (auto group = current_tensor_group()) return group;
  fail_usage(fmt::format("{}: no model has been divided", caller), "parallel.sequence",
             "call prepare before the model's forward");
}

}  // namespace

void Accelerator::Impl::divide_layers(strategy::Model& model,
                                      const std::vector<sharding::PlannedLayers>& own_plan) {
  if (groups->mesh().size("tensor") == 1) return;
  std::vector<sharding::PlannedLayers> plan;
  for (const std::string& line : config.parallel.tensor_plan)
    plan.push_back(sharding::planned_layers(line));
  if (!config.parallel.sequence) {
    for (const sharding::PlannedLayers& line : plan) refuse_parts_of_sequence(line);
  }
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
  tensor_parallel::DivideOptions options{.overlap_chunks = config.parallel.overlap_chunks};
  if (config.parallel.sequence) options.sequence = config.parallel.sequence_dim;
  tensor_parallel::divide(model, {plan, own_plan}, tensor_comm, options);
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

int sequence_ranks() {
  const config::Config* const config = current_config();
  if (config == nullptr || !config->parallel.sequence) return 1;
  return current_accelerator()->mesh().size("tensor");
}

at::Tensor sequence_part(const at::Tensor& x, int64_t dim) {
  const int ranks = sequence_ranks();
  if (ranks == 1) return x;
  dim = dimension_of_tokens(x, dim, "sequence_part");
  if (x.size(dim) % ranks != 0) {
    fail_argument(fmt::format("sequence_part: the {} tokens of dimension {} of [{}] cannot be "
                              "divided over {} ranks",
                              x.size(dim), dim, fmt::join(x.sizes(), ", "), ranks),
                  "parallel.sequence", "pad sequences to a multiple of parallel.tensor");
  }
  return tensor_parallel::own_tokens(x, dim, sequence_group("sequence_part"));
}

at::Tensor whole_sequence(const at::Tensor& part, int64_t dim) {
  if (sequence_ranks() == 1) return part;
  dim = dimension_of_tokens(part, dim, "whole_sequence");
  return tensor_parallel::gather_tokens(part, dim, sequence_group("whole_sequence"));
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
