// ForwardSegment: the operations of one segment of a forward, and what autograd saved for backward
// during them. When the segment ends, tensors that it computed itself are released. When backward
// needs them, the operations run again from the segment's inputs, which may be in host memory
// meanwhile. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <coupler/autocast.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "activations/activation_checkpoint.h"
#include "activations/activation_offload.h"
#include "empty_weights/recording.h"
#include "tensors/divided_values.h"
#include "tensors/replaced_attention.h"
#include "tensors/replaced_dropout.h"

namespace coupler::activations {

class ForwardSegment {
 public:
  using Stack = std::vector<c10::IValue>;

  // unit: for errors. Begins now, with the current generator and autocast state.
  explicit ForwardSegment(std::string unit);

  // Called around an operation, begin_call() before it runs. abandon_call() if it threw.
  void begin_call(const c10::OperatorHandle& op, const Stack& arguments);
  void end_call(const Stack& results);
  void abandon_call();
  bool in_call() const { return in_call_; }
  const AutocastSettings& autocast() const { return autocast_; }

  // Called for each tensor that autograd saves during a call. Returns its number for unpack().
  size_t save(const at::Tensor& tensor);

  // Ends the segment and releases what can be recomputed. Without this call everything is kept.
  void close();
  // Drops the tensors that have a graph, which refers to this. Call it before the segment is left.
  void let_go() { inner_.clear(); }

  // Throws Error if an input was written to since, or if recomputing gives a different result.
  at::Tensor unpack(size_t number);
  // Whether backward, possibly on another thread, has reached this segment.
  bool unpacked() const { return unpacked_ > 0; }

 private:
  // A result of an earlier call.
  struct Made {
    size_t call = 0;
    empty_weights::Position position;
  };
  // What is kept for backward.
  struct Kept {
    at::Tensor tensor;  // without its graph, which may refer to this
    VersionMark version;
    std::optional<size_t> away;  // its index in host memory, if it was moved there
    bool there() const { return tensor.defined() || away; }
  };
  struct Input {
    empty_weights::Position position;
    std::optional<Made> made;  // empty: see outside
    Kept outside;
    bool requires_grad = false;
    bool copied = false;  // written to undeclared: running statistics
  };
  struct Call {
    c10::OperatorHandle op;
    Stack arguments;  // without the tensors
    std::vector<Input> inputs;
    bool grad_mode = true;
    bool once = false;  // does not run again: it writes to an outside tensor, or is not repeatable
    size_t saves = 0;
  };
  struct Saved {
    Kept kept;                 // empty if released
    std::optional<Made> made;  // empty: the nth that the call saves
    size_t call = 0, nth = 0;
    std::vector<int64_t> sizes;
    at::Tensor again;                                          // recomputed, until it is requested
    size_t place() const { return made ? made->call : call; }  // the call that recomputes it
  };
  struct Known {
    Made made;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // keeps its address from being reused
  };

  // Empty if no call made it, or one that does not run again.
  std::optional<Made> made_of(const at::Tensor& tensor) const;
  Input input_of(const at::Tensor& tensor, empty_weights::Position position);
  bool is_outside(const at::Tensor& tensor) const;
  bool would_be_leaf(const Input& input) const;
  bool inputs_are_as_they_were() const;
  void offload();
  void offload(Kept& kept);
  at::Tensor value_of(const Kept& kept) const;
  at::Tensor value_of(const Input& input, const std::vector<Stack>& results,
                      std::vector<at::Tensor>& aliases) const;
  void recompute();
  void take_recomputed(Saved& saved, const at::Tensor& tensor) const;
  [[noreturn]] void refuse_difference(const std::string& difference) const;

  const std::string unit_;
  const RandomState random_;
  const AutocastSettings autocast_;
  const std::shared_ptr<tensors::AttentionReplacement> attention_;
  const std::shared_ptr<const tensors::PartOfTokens> tokens_;
  const std::shared_ptr<const tensors::DividedValues> divided_;
  std::vector<Call> calls_;
  std::vector<Saved> saved_;
  std::shared_ptr<OffloadedTensors> offloaded_;  // null: none
  std::vector<at::Tensor> back_;                 // while backward is in this segment
  std::atomic<size_t> unpacked_ = 0;             // number of unpack() calls
  bool in_call_ = false;
  bool recomputable_ = true;
  // Used while recording.
  // What calls saved and made themselves, such as what layers make of an input that they share: a
  // layer finds it only while it is alive (tensor_parallel/exchange.cc).
  std::vector<at::Tensor> inner_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_set<const c10::StorageImpl*> outside_;  // storages of inputs
};

}  // namespace coupler::activations
