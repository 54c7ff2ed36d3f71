#include "tensor_parallel/input_gradient.h"

#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace coupler::tensor_parallel {

InputGradient::InputGradient(Group group, std::optional<int64_t> tokens)
    : group_(std::move(group)), tokens_(tokens) {}

void InputGradient::release_resources() {
  pending_.reset();
  sum_.reset();
  group_.reset();
}

// A backward that failed leaves parts, and one of a kept graph comes again.
void InputGradient::begin_backward() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward == backward_) return;
  backward_ = backward;
  given_ = 0;
  pending_.reset();
  sum_.reset();
}

PendingExchange InputGradient::start(const at::Tensor& sum) const {
  if (!tokens_) return PendingExchange::sum(sum.contiguous(), group_);
  const at::Tensor parts = by_rank(sum, *tokens_, group_).contiguous();
  return PendingExchange::sum_of_parts(parts, parts.new_empty(parts.sizes().slice(1)), group_);
}

at::Tensor InputGradient::give(const at::Tensor& part) {
  if (givers_ != takers_) return part;
  begin_backward();
  sum_ = sum_.defined() ? sum_.add_(part) : part;
  // A backward of some layers only ends in finish().
  if (++given_ == givers_) pending_.emplace(start(std::exchange(sum_, at::Tensor())));
  return {};
}

at::Tensor InputGradient::finish(const at::Tensor& others) {
  begin_backward();
  given_ = 0;
  at::Tensor late = std::exchange(sum_, at::Tensor()), result;
  if (others.defined()) late = late.defined() ? late.add_(others) : others;
  if (pending_) {
    result = pending_->wait();
    pending_.reset();
  }
  if (late.defined()) {
    const at::Tensor sum = start(late).wait();
    result = result.defined() ? result.add_(sum) : sum;
  }
  return result;
}

}  // namespace coupler::tensor_parallel
