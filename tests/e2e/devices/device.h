// What the checks on a device share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "check.h"

constexpr int64_t kRows = 24;  // divides by worlds 1 to 4, and by windows of two batches

// A batch's tensors on the Accelerator's device, as a loader would bring them.
Batch on_device(coupler::Accelerator& accelerator, const Batch& batch);

// Every parameter, whole, on the CPU, by name. Collective.
std::map<std::string, torch::Tensor> values_of(coupler::Accelerator& accelerator, Net& net);

// A model of the CPU's with the values of a prepared one. Collective.
Net reference_of(coupler::Accelerator& accelerator, Net& net);
// That they have the same weights, but for rounding. Collective.
void expect_same_weights(coupler::Accelerator& accelerator, Net& net, Net& reference,
                         double tolerance, const std::string& when);

// Of the Accelerator's device: what tensors hold now, and the most they held since the program
// began.
struct DeviceBytes {
  size_t now = 0, most = 0;
};
DeviceBytes device_bytes(coupler::Accelerator& accelerator);

std::vector<Check> training_checks();
std::vector<Check> collective_checks();
std::vector<Check> state_checks();
