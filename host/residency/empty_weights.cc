#include <coupler/empty_weights.h>
#include <torch/library.h>

#include "residency/recorder.h"
#include "residency/replay.h"

namespace coupler {
namespace {

// Stands before every other dispatch key, so operations come as the program calls them, and is on
// only in threads that have a scope.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void intercept(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(recording_keys());
  Recorder& recorder = Recorder::of_this_thread();
  if (recorder.active()) {
    recorder.call(op, *stack);
  } else {
    op.callBoxed(stack);  // LibTorch hands thread-local keys on to threads of its own
  }
}

}  // namespace

EmptyWeights::EmptyWeights() {
  Recorder::of_this_thread().enter();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

EmptyWeights::~EmptyWeights() {
  Recorder& recorder = Recorder::of_this_thread();
  recorder.leave();
  if (!recorder.active()) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

}  // namespace coupler

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&coupler::intercept>());
}
