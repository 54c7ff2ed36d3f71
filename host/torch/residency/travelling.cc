#include "residency/travelling.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "empty_weights/arguments.h"
#include "residency/intercept.h"

namespace coupler {
namespace {

// The device of this thread's last operation with parameters.
thread_local std::optional<c10::Device> last_device;

// The arguments of these may be on different devices.
constexpr std::array<std::string_view, 6> kBetweenDevices = {"aten::copy_", "aten::_copy_from",
                                                             "aten::to",    "aten::_to_copy",
                                                             "aten::set_",  "aten::set_data"};

bool is_between_devices(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return std::find(kBetweenDevices.begin(), kBetweenDevices.end(), name) != kBetweenDevices.end();
}

// A number on the CPU combines with tensors of any device.
bool is_number(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

std::optional<c10::Device> device_among(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack) {
  std::optional<c10::Device> first;
  bool at_last = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (is_number(tensor)) return;
      if (!first && !tensor.is_cpu()) first = tensor.device();
      at_last = at_last || tensor.device() == last_device;
    });
  }
  return at_last && !last_device->is_cpu() ? last_device : first;
}

}  // namespace

Journey::Journey(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                 std::optional<c10::Device> runs_on, bool only_travellers) {
  if (runs_on) {
    last_device = device_ = runs_on;
  } else if (only_travellers) {
    device_ = device_among(op, stack);
  }
  if (!device_ || is_between_devices(op)) return;
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t begin = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = arguments[i].alias_info();
    bring(stack[begin + i], alias != nullptr && alias->isWrite());
  }
}

at::Tensor Journey::brought(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || tensor.device() == *device_ || is_number(tensor)) return tensor;
  at::Tensor there = tensor.to(*device_);
  if (writes) written_.emplace_back(tensor, there);
  return there;
}

// Copies a list before changing it, since copies of an IValue share their list.
void Journey::bring(c10::IValue& value, bool writes) {
  if (value.isTensor()) {
    value = brought(value.toTensor(), writes);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list = value.toTensorList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, brought(list.get(i), writes));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list = value.toOptionalTensorList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      const std::optional<at::Tensor> tensor = list.get(i);
      if (tensor) list.set(i, brought(*tensor, writes));
    }
    value = list;
  }
}

void Journey::arrive(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  if (!device_) return;
  for (const auto& [original, there] : written_) original.copy_(there);
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    for (const auto& [original, there] : written_) {
      if (stack[i].isTensor() && stack[i].toTensor().is_same(there)) stack[i] = original;
    }
    each_tensor(stack[i], [](const at::Tensor& tensor) {
      if (!tensor.is_cpu() && !has_intercept(tensor)) put_intercept(tensor);
    });
  }
}

}  // namespace coupler
