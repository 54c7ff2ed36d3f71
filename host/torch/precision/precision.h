// What training.mixed_precision does on a device: whether it is supported, and what runs in which
// type; and the calling thread's autocast. [any-thread]
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <coupler/autocast.h>

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "strategy/model.h"

namespace coupler::precision {

// The type that autocast regions compute in (with fp8, except for linear layers). Empty: they do
// nothing.
std::optional<c10::ScalarType> autocast_type(const std::string& mixed_precision);

// With fp8, the type in which gradients of linear layers are multiplied; otherwise empty.
std::optional<c10::ScalarType> fp8_gradient_type(const config::TrainingConfig& config);

// Tries a small forward and backward pass. If the device does not support the type, throws
// Error(kUnsupported) naming the device and what to use instead.
void require_precision(const config::TrainingConfig& config, c10::DeviceType device);

// One line: the types in which the model of this name is stored, computed, reduced and optimized.
std::string describe_types(const std::string& model, const strategy::ModelTypes& types,
                           const config::TrainingConfig& config);

// Drops autocast's cached copies of parameters, whose values have changed.
void drop_cast_copies();

// A scope with these settings, one for all loops whose bodies this thread is in; null inside
// another scope, which then decides.
std::shared_ptr<void> loop_scope(const AutocastSettings& settings);

// The calling thread's autocast settings, to be applied again elsewhere. The cast cache is off: a
// copy cast without a graph must not be reused while one is recorded.
AutocastSettings autocast_now();

}  // namespace coupler::precision
