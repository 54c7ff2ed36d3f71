// What training.mixed_precision does on a device: whether it can be had, and what runs in which
// type. [any-thread]
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "config/config.h"
#include "strategy/strategy.h"

namespace coupler {

// What autocast regions compute in (with fp8: all but linear layers); none: they do nothing.
std::optional<c10::ScalarType> autocast_type(const std::string& mixed_precision);

// What the gradients of linear layers are multiplied in, with fp8; else none.
std::optional<c10::ScalarType> fp8_gradient_type(const TrainingConfig& config);

// Tries a small forward and backward pass. Throws Error(kUnsupported) naming the device and what to
// use instead where the device has no such type.
void require_precision(const TrainingConfig& config, c10::DeviceType device);

// One line: the types that a prepared model is stored, computed, reduced and optimised in.
std::string describe_types(const Strategy& model, const TrainingConfig& config);

// Forgets the copies of parameters that autocast keeps: they are of values that have changed.
void drop_cast_copies();

}  // namespace coupler
