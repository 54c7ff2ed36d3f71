#include <coupler/empty_weights.h>
#include <torch/library.h>

#include "empty_weights/recorder.h"
#include "empty_weights/replay.h"

namespace coupler {
namespace {

// Comes before every other dispatch key, so operations arrive as the program calls them. It is on
// only in threads that have a scope.
constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local std::optional<c10::Device> init_device;  // of the innermost InitOnDevice

// Sets the device of an operation that creates a tensor from no other and names no device.
void set_device(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::Device device) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  std::optional<size_t> place;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor() || value.isTensorList()) return;
    if (arguments[i].name() == "device" && value.isNone()) place = first + i;
  }
  if (place) stack[*place] = device;
}

void record_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(recording_keys());
  Recorder& recorder = Recorder::of_this_thread();
  if (recorder.active()) {
    recorder.call(op, *stack);
    return;
  }
  // init_device is unset in LibTorch's own threads, to which it passes thread-local keys.
  if (init_device) set_device(op, *stack, *init_device);
  op.callBoxed(stack);
}

void include_key() {
  c10::impl::tls_set_dispatch_key_included(
      kRecordingKey, Recorder::of_this_thread().active() || init_device.has_value());
}

}  // namespace

EmptyWeights::EmptyWeights(const EmptyWeightsOptions& options) {
  Recorder::of_this_thread().enter(options.include_buffers);
  include_key();
}

EmptyWeights::~EmptyWeights() {
  // Buffers are materialized in leave(), which must not be recorded again.
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, false);
  Recorder::of_this_thread().leave();
  include_key();
}

InitOnDevice::InitOnDevice(c10::Device device, const EmptyWeightsOptions& options)
    : before_(init_device) {
  if (device.is_meta()) {
    empty_.emplace(options);
  } else {
    init_device = device;
  }
  include_key();
}

InitOnDevice::~InitOnDevice() {
  if (!empty_) init_device = before_;
  include_key();
}

}  // namespace coupler

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&coupler::record_operation>());
}
