#include "device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <test_device.h>

namespace {

const bool kIsDouble = coupler::testing::register_if_chosen();

}  // namespace

Batch on_device(coupler::Accelerator& accelerator, const Batch& batch) {
  return {batch.tokens.to(accelerator.device()), batch.targets.to(accelerator.device())};
}

std::map<std::string, torch::Tensor> values_of(coupler::Accelerator& accelerator, Net& net) {
  std::map<std::string, torch::Tensor> result;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    result[name] = value.detach().cpu().clone();
  });
  return result;
}

Net reference_of(coupler::Accelerator& accelerator, Net& net) {
  const torch::NoGradGuard no_grad;
  Net copy;
  for (const auto& [name, value] : values_of(accelerator, net)) {
    if (auto* parameter = copy->named_parameters().find(name)) parameter->copy_(value);
  }
  return copy;
}

void expect_same_weights(coupler::Accelerator& accelerator, Net& net, Net& reference,
                         double tolerance, const std::string& when) {
  const auto expected = reference->named_parameters();
  for (const auto& [name, value] : values_of(accelerator, net)) {
    const auto* const other = expected.find(name);
    if (other == nullptr) continue;
    const double difference = (value - *other).abs().max().item<double>();
    EXPECT(difference <= tolerance,
           name + " differs by " + std::to_string(difference) + " " + when);
  }
}

DeviceBytes device_bytes(coupler::Accelerator& accelerator) {
  const c10::Device device = accelerator.device();
  if (device.is_privateuseone()) {
    return {coupler::testing::device_bytes(device.index()),
            coupler::testing::most_device_bytes(device.index())};
  }
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& bytes = stats.allocated_bytes[0];
  return {static_cast<size_t>(bytes.current), static_cast<size_t>(bytes.peak)};
}

std::vector<Check> all_checks() {
  std::vector<Check> result;
  for (const auto& part : {training_checks(), collective_checks(), state_checks()}) {
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}
