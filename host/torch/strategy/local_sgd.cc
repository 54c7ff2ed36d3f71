#include "strategy/local_sgd.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "tensors/tensor_ops.h"

namespace coupler {

LocalSgd::LocalSgd(const CommunicationConfig& config, FlatParameters& flat,
                   std::shared_ptr<Communicator> comm, std::vector<at::Tensor> buffers)
    : flat_(flat),
      comm_(std::move(comm)),
      buffers_(std::move(buffers)),
      steps_(config.local_sgd_steps),
      momentum_(config.local_sgd_momentum) {
  if (momentum_ == 0) return;
  for (const FlatGroup& group : flat_.groups()) {
    previous_.push_back(group.parameters.detach().clone());
    velocity_.push_back(at::zeros_like(previous_.back()));
  }
}

void LocalSgd::average_if_due() {
  if (since_average_ >= steps_) average();
}

void LocalSgd::synchronize() {
  if (since_average_ > 0) average();
}

void LocalSgd::restart() {
  since_average_ = 0;
  for (size_t i = 0; i < previous_.size(); ++i) previous_[i].copy_(flat_.groups()[i].parameters);
}

void LocalSgd::average() {
  const at::NoGradGuard no_grad;
  since_average_ = 0;
  for (size_t i = 0; i < flat_.groups().size(); ++i) {
    at::Tensor& parameters = flat_.groups()[i].parameters;
    parameters.mul_(1.0 / comm_->size());
    comm_->run(all_reduce_op(parameters, DB_SUM));
    if (momentum_ == 0) continue;
    at::Tensor& velocity = velocity_[i];
    velocity.mul_(momentum_).add_(parameters).sub_(previous_[i]);
    parameters.copy_(previous_[i].add_(velocity));
  }
  if (!buffers_.empty()) broadcast_coalesced(*comm_, buffers_, 0);
}

std::vector<StateTensor> LocalSgd::state_tensors() const {
  std::vector<StateTensor> result;
  if (momentum_ == 0) return result;
  for (const FlatSlot& slot : flat_.slots()) {
    result.push_back({.name = "local_sgd_velocity/" + slot.name,
                      .tensor = velocity_[static_cast<size_t>(slot.group)]
                                    .narrow(0, slot.offset, slot.numel)
                                    .view(slot.parameter.sizes())});
  }
  return result;
}

}  // namespace coupler
