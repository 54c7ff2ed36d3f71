// PlacedTensor: the placement of one parameter or buffer of a model: where its values come from,
// where they are kept, and where operations on it run. Plain data.
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
  at::ScalarType type = at::kFloat;  // the requested dtype
  MapDevice lies;
  c10::Device runs = c10::kCPU;
  HostValue value;
  // The packed form of a quantized weight. `value` is its packed bytes, once they are made.
  std::shared_ptr<const PackedWeight> packed;

  // Whether it stays on the device on which it runs.
  bool stays() const { return lies.is_accelerator() || (lies.is_cpu() && runs.is_cpu()); }
  // As kept: packed, if it is.
  size_t bytes() const {
    if (packed != nullptr) return packed->bytes();
    return static_cast<size_t>(variable.numel()) * c10::elementSize(type);
  }
};

struct PlaceRules {
  // The device on which tensors on the CPU or a disk run. Unset: the lowest accelerator of the map,
  // else the CPU.
  std::optional<c10::Device> main_device;
  bool offload_buffers = false;         // else buffers stay where they run
  std::optional<at::ScalarType> dtype;  // of floating-point tensors; unset: the model's
};

// All tensors of a model, without values. The map must cover them (check_device_map). Throws
// Error(kInvalidArgument) for an accelerator that LibTorch does not see.
std::vector<PlacedTensor> place_tensors(const Model& model, const DeviceMap& map,
                                        const PlaceRules& rules);

// The LibTorch device; accelerators are of the kind that LibTorch sees.
c10::Device device_of(MapDevice device);

}  // namespace coupler
