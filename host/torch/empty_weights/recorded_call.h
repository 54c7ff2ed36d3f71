// One operator call inside EmptyWeights, analyzed: which of its tensors are recorded, which come
// from outside, what it writes, whether it draws random numbers. Used by Recorder, on its thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <utility>
#include <vector>

#include "empty_weights/recording.h"

namespace coupler::empty_weights {

struct CallTensor {
  enum class Kind {
    kRecorded,  // on meta, with a recording
    kUnknown,   // on meta, without a recording
    kReal,      // from outside, on the CPU
    kForeign,   // from outside, unusable in a replay: on another device, or sparse
  };
  Position position;
  at::Tensor tensor;
  Kind kind = Kind::kReal;
  bool writes = false;
  bool announced = false;   // the schema declares the write
  TensorGeometry geometry;  // of recorded and real tensors, before the call
};

class RecordedCall {
 public:
  RecordedCall(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments);

  const std::string& name() const { return op_.schema().name(); }
  const c10::OperatorHandle& op() const { return op_; }
  const std::vector<c10::IValue>& arguments() const { return arguments_; }
  const std::vector<CallTensor>& tensors() const { return tensors_; }

  bool random() const { return random_; }
  bool has(CallTensor::Kind kind) const;
  bool writes(CallTensor::Kind kind) const;
  bool returns_recorded_input() const;  // operates in place on one
  bool gives_tensors() const;
  bool shapes_without_values() const;  // according to LibTorch's tags
  // Takes a Storage: only set_ does, which changes a handle but no values.
  bool takes_storage() const;

  // Throws coupler::Error if a replay on the CPU with the default generator could not repeat the
  // call. Turns a meta device into CPU: it comes from the options of recorded tensors.
  void require_replayable();

  // The arguments for a call on meta. Real tensors are replaced by meta ones of the same geometry,
  // which share storages as the real ones do; real_storage_of maps them back.
  std::vector<c10::IValue> meta_arguments();
  c10::Storage real_storage_of(const at::Tensor& meta) const;

  // The call as a replay needs it, without results.
  RecordedOperation operation() const;

 private:
  const c10::OperatorHandle& op_;
  std::vector<c10::IValue> arguments_;
  std::vector<CallTensor> tensors_;
  int device_ = -1;  // index of the device argument
  bool random_ = false;
  std::vector<std::pair<c10::Storage, c10::Storage>> stand_ins_;  // real, meta
};

}  // namespace coupler::empty_weights
