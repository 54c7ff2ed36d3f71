#include <coupler/big_model.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "dispatch/dispatched_state.h"

namespace coupler {

const DeviceMap& DispatchedModel::device_map() const { return state_->map(); }

void OffloadHook::offload() const { state_->release(); }

const DeviceMap& device_map(const torch::nn::Module& model) {
  const DispatchedState* const state = DispatchedState::of(identity_of(model));
  if (state != nullptr) return state->map();
  throw Error(ErrorCode::kUsage, fmt::format("the model '{}' is not dispatched", model.name()),
              {.subject = model.name(),
               .hint = "call dispatch_model or load_checkpoint_and_dispatch first"});
}

}  // namespace coupler
