// Values for models built inside EmptyWeights: runs what their constructors recorded, one tensor
// after the other. Any thread, one at a time; meanwhile no other thread may draw from the default
// generator (building in EmptyWeights is no drawing).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "residency/replay.h"

namespace coupler {

struct MetaTensor {
  std::string name;  // for messages
  at::Tensor tensor;
};

// The tensor's value: bit for bit what an eager constructor would have given.
using ValueSink = std::function<void(size_t index, at::Tensor value)>;

// Hands the value of each wanted tensor to `sink` exactly once, in the order in which they get
// ready. A value takes memory from its last initialisation to the sink, which may keep it (tied
// tensors share theirs) and may call put_value. Undefined tensors and those not on meta go to the
// sink as they are, first. Only what the wanted tensors need is run: their operations, and the
// random ones before them that nobody has run yet.
//
// Throws coupler::Error naming the tensor where it has no recipe or was changed in place outside
// the scope; before anything runs. An error of the sink ends the replay.
ReplayReport materialise(const std::vector<MetaTensor>& wanted, const ValueSink& sink);

// Whether the tensor is on meta and was made inside EmptyWeights.
bool has_recipe(const at::Tensor& tensor);

// Makes a meta parameter or buffer real, whatever made it: `value`'s memory under the same
// TensorImpl, so that modules, optimizers and tied handles see it. requires_grad and leaf-ness
// stay. `value` needs the same shape; its dtype and device become the tensor's.
void put_value(const at::Tensor& meta, const at::Tensor& value);

// The same for a tensor that may have values, which it loses.
void give_value(const at::Tensor& variable, const at::Tensor& value);

// at::Tensor::set_data, and give_value where the device is another one, which set_data may refuse.
void set_value(const at::Tensor& variable, const at::Tensor& value);

}  // namespace coupler
