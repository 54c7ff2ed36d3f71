// One operator call inside EmptyWeights, taken apart: which of its tensors are recorded ones, which
// come from outside, what it writes, whether it draws. Used by Recorder, on its thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <utility>
#include <vector>

#include "residency/recipe.h"

namespace coupler {

struct CallTensor {
  enum class Kind {
    kRecorded,  // on meta, with a recipe
    kUnknown,   // on meta, without
    kReal,      // from outside, on the CPU
    kForeign,   // from outside, something that a replay cannot take: another device, sparse
  };
  Position position;
  at::Tensor tensor;
  Kind kind = Kind::kReal;
  bool writes = false;
  bool announced = false;  // the schema says that it writes
  Place place;             // of recorded and real ones, before the call
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
  bool returns_recorded_input() const;  // in place
  bool gives_tensors() const;
  bool shapes_without_values() const;  // as far as LibTorch's tags say
  // Takes a Storage: only set_ does, which changes a handle, no values.
  bool takes_storage() const;

  // Throws coupler::Error where a replay on the CPU with the default generator could not repeat the
  // call. A device of meta becomes CPU: it comes from the options of recorded tensors.
  void require_replayable();

  // The arguments for a call on meta. Real tensors are replaced by meta ones of the same geometry,
  // which share a storage where the real ones do; real_storage_of tells whose.
  std::vector<c10::IValue> meta_arguments();
  c10::Storage real_storage_of(const at::Tensor& meta) const;

  // The call as a replay needs it, results left out.
  Operation operation() const;

 private:
  const c10::OperatorHandle& op_;
  std::vector<c10::IValue> arguments_;
  std::vector<CallTensor> tensors_;
  int device_ = -1;  // which argument it is
  bool random_ = false;
  std::vector<std::pair<c10::Storage, c10::Storage>> stand_ins_;  // real, meta
};

}  // namespace coupler
