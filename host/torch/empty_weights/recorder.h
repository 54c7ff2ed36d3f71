// Recorder: handles each operator call in a thread's EmptyWeights scopes: calls it on meta and
// appends it to the thread's recording. One per thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <exception>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "empty_weights/recorded_call.h"
#include "empty_weights/recording.h"

namespace coupler::empty_weights {

class Recorder {
 public:
  static Recorder& of_this_thread();

  // Begins a scope. include_buffers: see EmptyWeightsOptions; the outermost scope's applies.
  void enter(bool include_buffers);
  void leave();
  bool active() const { return depth_ > 0; }

  // Runs the call whose arguments are on top of the stack, and replaces them by its results.
  void call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

 private:
  // Runs on meta. Returns the error if the operation needs values, else null.
  static std::exception_ptr run_on_meta(RecordedCall& call, std::vector<c10::IValue>& results);
  // Runs with the real values of its recorded inputs. why: run_on_meta's error, or null.
  void run_for_values(const RecordedCall& call, std::vector<c10::IValue>& results,
                      const std::exception_ptr& why);
  void record(const RecordedCall& call, std::vector<c10::IValue>& results,
              const std::optional<GeneratorState>& found);
  void touch(const RecordedCall& call);
  void materialize_buffers() const;

  int depth_ = 0;
  bool include_buffers_ = true;
  // Kept between scopes, so that models built one after another draw one after another.
  std::shared_ptr<Recording> recording_;
  std::unique_ptr<Recording::Use> use_;
  // The tensors seen in this scope: everything that happens to them until its end is recorded.
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> touched_;
  // Not needed any more, but the scope's code may still have a pointer into it.
  std::vector<std::shared_ptr<RawContent>> overwritten_;
};

}  // namespace coupler::empty_weights
