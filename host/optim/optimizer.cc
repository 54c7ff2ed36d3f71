#include <coupler/error.h>
#include <coupler/optimizer.h>
#include <fmt/format.h>

#include "log/log.h"
#include "optim/optimizer_state.h"

namespace coupler {
namespace {

size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

}  // namespace

OptimizerState::OptimizerState(torch::optim::Optimizer& optimizer,
                               const std::vector<FlatParameters*>& models,
                               std::function<bool()> accumulating)
    : optimizer_(optimizer),
      parameters_(count_parameters(optimizer)),
      kernel_(FusedKernel::make(optimizer, models, not_fused_)),
      accumulating_(std::move(accumulating)) {
  if (log_enabled(LogLevel::kInfo, "optim")) log(LogLevel::kInfo, "optim", description());
}

void OptimizerState::step() {
  if (accumulating_()) return;
  if (count_parameters(optimizer_) != parameters_) {
    throw Error(ErrorCode::kUsage, "parameters were added to the optimizer after prepare",
                {.hint = "add every parameter group before accelerator.prepare"});
  }
  if (kernel_ != nullptr) {
    kernel_->step();
  } else {
    optimizer_.step();
  }
}

void OptimizerState::zero_grad(bool set_to_none) {
  if (!accumulating_()) optimizer_.zero_grad(set_to_none);
}

std::string OptimizerState::description() const {
  return kernel_ != nullptr ? fmt::format("fused {}", kernel_->name())
                            : fmt::format("torch::optim as it is: {}", not_fused_);
}

void Optimizer::step() { state_->step(); }
void Optimizer::zero_grad(bool set_to_none) { state_->zero_grad(set_to_none); }
std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  return state_->torch_optimizer().param_groups();
}
torch::optim::Optimizer& Optimizer::unwrap() { return state_->torch_optimizer(); }
std::string Optimizer::description() const { return state_->description(); }

}  // namespace coupler
