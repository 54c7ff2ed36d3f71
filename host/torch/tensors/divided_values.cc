#include "tensors/divided_values.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "device/device_memory.h"
#include "tensors/autocast_state.h"

namespace coupler::tensors {
namespace {

thread_local std::shared_ptr<const DividedValues> values_now;

// The same on every rank of the tensor group.
uint64_t common_number() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

// For what computes again, perhaps when the graph of these values is gone.
std::shared_ptr<const DividedValues> without_end(
    const std::shared_ptr<const DividedValues>& values) {
  if (values == nullptr) return nullptr;
  return std::make_shared<const DividedValues>(
      DividedValues{.features = values->features, .rank = values->rank});
}

}  // namespace

std::shared_ptr<const DividedValues> set_divided_values(
    std::shared_ptr<const DividedValues> values) {
  use_replaced_ops(ReplacedOps::kOwnDraws, values != nullptr);
  return std::exchange(values_now, std::move(values));
}

std::shared_ptr<const DividedValues> divided_values() {
  return values_now != nullptr && values_now->life.ended() ? nullptr : values_now;
}

bool is_divided(const at::Tensor& tensor) {
  if (divided_values() == nullptr || tensor.dim() == 0) return false;
  const std::vector<int64_t>& features = values_now->features;
  return tensor.dim() == 4 ||
         std::find(features.begin(), features.end(), tensor.size(-1)) != features.end();
}

OwnDraws::OwnDraws(c10::Device device)
    : generator_(device::device_generator(device).value_or(at::detail::getDefaultCPUGenerator())) {
  // The CPU's generator counts the draws of all devices, so a device's own can go back to where it
  // was.
  const uint64_t seed = common_number() + static_cast<uint64_t>(values_now->rank);
  const std::lock_guard lock(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

OwnDraws::~OwnDraws() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

DividedValuesScope::DividedValuesScope(const std::shared_ptr<const DividedValues>& values)
    : before_(set_divided_values(without_end(values))) {}
DividedValuesScope::~DividedValuesScope() { set_divided_values(std::move(before_)); }

}  // namespace coupler::tensors
