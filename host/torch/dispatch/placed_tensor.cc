#include "dispatch/placed_tensor.h"

#include <ATen/DeviceAccelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>

namespace coupler {
namespace {

c10::Device main_device_of(const DeviceMap& map, const PlaceRules& rules) {
  if (rules.main_device) return *rules.main_device;
  std::optional<MapDevice> lowest;
  for (const auto& [path, device] : map.entries()) {
    if (device.is_accelerator() && (!lowest || device < *lowest)) lowest = device;
  }
  return lowest ? device_of(*lowest) : c10::Device(c10::kCPU);
}

}  // namespace

c10::Device device_of(MapDevice device) {
  if (!device.is_accelerator()) return c10::kCPU;
  const auto kind = at::getAccelerator();
  const int count = kind ? at::accelerator::deviceCount() : 0;
  if (device.index() >= count) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the device map names accelerator {}, but LibTorch sees {}",
                            device.index(), count == 0 ? "none" : fmt::format("{}", count)),
                {.subject = device.to_string(),
                 .hint = "use a map for the devices of this machine, or device_map = \"auto\" with "
                         "max_memory for them"});
  }
  return {*kind, static_cast<c10::DeviceIndex>(device.index())};
}

std::vector<PlacedTensor> place_tensors(const Model& model, const DeviceMap& map,
                                        const PlaceRules& rules) {
  const c10::Device main = main_device_of(map, rules);
  std::vector<PlacedTensor> result;
  const auto place = [&](const std::string& name, const at::Tensor& variable, size_t module,
                         bool buffer) {
    PlacedTensor placed{.name = name, .variable = variable, .module = module, .buffer = buffer};
    placed.type = variable.scalar_type();
    if (rules.dtype && variable.is_floating_point()) placed.type = *rules.dtype;
    placed.lies = map.device_of(name).value_or(MapDevice::cpu());
    placed.runs = placed.lies.is_accelerator() ? device_of(placed.lies) : main;
    if (buffer && !rules.offload_buffers && !placed.stays()) {
      placed.lies = main.is_cpu() ? MapDevice::cpu() : MapDevice(main.index());
    }
    result.push_back(std::move(placed));
  };
  for (const ModelParameter& parameter : model.parameters)
    place(parameter.name, parameter.tensor, parameter.module, false);
  for (const auto& [name, buffer] : model.buffers) {
    // The module of a buffer is known only from its name.
    const auto dot = name.rfind('.');
    const std::string path = dot == std::string::npos ? "" : name.substr(0, dot);
    const auto module = std::find_if(model.modules.begin(), model.modules.end(),
                                     [&](const ModelModule& other) { return other.name == path; });
    place(name, buffer, static_cast<size_t>(module - model.modules.begin()), true);
  }
  return result;
}

}  // namespace coupler
