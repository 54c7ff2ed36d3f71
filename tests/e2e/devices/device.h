// Shared by the checks on a device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "check.h"

constexpr int64_t kRows = 24;  // divisible by world sizes 1 to 4, also in windows of two batches

// A batch's tensors on the Accelerator's device, as a loader would move them.
Batch on_device(coupler::Accelerator& accelerator, const Batch& batch);

// Every full parameter on the CPU, by name. Collective.
std::map<std::string, torch::Tensor> values_of(coupler::Accelerator& accelerator, Net& net);

// A model on the CPU with the values of a prepared one. Collective.
Net reference_of(coupler::Accelerator& accelerator, Net& net);
// Expects the same weights, up to rounding. Collective.
void expect_same_weights(coupler::Accelerator& accelerator, Net& net, Net& reference,
                         double tolerance, const std::string& when);

// Memory of the Accelerator's device: what tensors use now, and the peak since the program's start.
struct DeviceBytes {
  size_t now = 0, most = 0;
};
DeviceBytes device_bytes(coupler::Accelerator& accelerator);

std::vector<Check> training_checks();
std::vector<Check> collective_checks();
std::vector<Check> state_checks();
