// PlacedTensor: what becomes of one parameter or buffer of a model: where its values are from,
// where they lie, and where operations on it run. Plain data.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/device_map.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/host_value.h"
#include "quantize/packed_weight.h"
#include "strategy/model.h"

namespace coupler {

struct PlacedTensor {
  std::string name;
  at::Tensor variable;  // the model's own
  size_t module = 0;    // in Model::modules
  bool buffer = false;
  at::ScalarType type = at::kFloat;  // which it is to have
  MapDevice lies;
  c10::Device runs = c10::kCPU;
  HostValue value;
  // Of a weight that is quantised: how it lies. `value` is its packed bytes, once they are made.
  std::shared_ptr<const PackedWeight> packed;

  // Whether it lies where it runs for good.
  bool stays() const { return lies.is_accelerator() || (lies.is_cpu() && runs.is_cpu()); }
  // As it lies.
  size_t bytes() const {
    if (packed != nullptr) return packed->bytes();
    return static_cast<size_t>(variable.numel()) * c10::elementSize(type);
  }
};

struct PlaceRules {
  // Where what lies on the CPU or a disk runs. Unset: the lowest accelerator of the map, else the
  // CPU.
  std::optional<c10::Device> main_device;
  bool offload_buffers = false;         // else buffers lie where they run
  std::optional<at::ScalarType> dtype;  // of floating tensors; unset: as the model has them
};

// All of a model, without values. The map must cover it (check_device_map). Throws
// Error(kInvalidArgument) for an accelerator that LibTorch does not see.
std::vector<PlacedTensor> place_tensors(const Model& model, const DeviceMap& map,
                                        const PlaceRules& rules);

// As LibTorch has it: accelerators are of the kind that it sees.
c10::Device device_of(MapDevice device);

}  // namespace coupler
