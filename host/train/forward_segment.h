// ForwardSegment: the operations of one stretch of a forward, and what autograd saved for backward
// during them. When the stretch is over, what it computed itself is let go; when backward asks for
// it, the operations run once more, from the stretch's inputs, which meanwhile may be in host
// memory. Recorded and read by one thread at a time.
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

#include "offload/offloaded_tensors.h"
#include "offload/version_mark.h"
#include "residency/recipe.h"
#include "train/random_state.h"

namespace coupler {

class ForwardSegment {
 public:
  using Stack = std::vector<c10::IValue>;

  // unit: for errors. It begins now, with the generator and the autocast that there are.
  explicit ForwardSegment(std::string unit);

  // Around an operation; its arguments before it runs. abandon_call() where it threw.
  void begin_call(const c10::OperatorHandle& op, const Stack& arguments);
  void end_call(const Stack& results);
  void abandon_call();
  bool in_call() const { return in_call_; }
  const AutocastSettings& autocast() const { return autocast_; }

  // What autograd saves while a call runs; the number to ask for it by.
  size_t save(const at::Tensor& tensor);

  // The stretch is over: lets go of what can be computed again. Without it all stays.
  void close();

  // Throws Error where an input was written to since, or where computing again gives something
  // else.
  at::Tensor unpack(size_t number);
  // Whether backward, which may be another thread, has come here.
  bool unpacked() const { return unpacked_ > 0; }

 private:
  // A result of an earlier call.
  struct Made {
    size_t call = 0;
    Position position;
  };
  // What stays for backward.
  struct Kept {
    at::Tensor tensor;  // without its graph, which may lead back here
    VersionMark version;
    std::optional<size_t> away;  // its number in host memory, in place of the tensor
    bool there() const { return tensor.defined() || away; }
  };
  struct Input {
    Position position;
    std::optional<Made> made;  // else:
    Kept outside;
    bool requires_grad = false;
    bool copied = false;  // written to without saying so: running statistics
  };
  struct Call {
    c10::OperatorHandle op;
    Stack arguments;  // without the tensors
    std::vector<Input> inputs;
    bool grad_mode = true;
    bool once = false;  // it writes to what came from outside: it does not run again
    size_t saves = 0;
  };
  struct Saved {
    Kept kept;                 // or let go
    std::optional<Made> made;  // else the nth that the call saves
    size_t call = 0, nth = 0;
    std::vector<int64_t> sizes;
    at::Tensor again;  // computed again, until it is asked for
    size_t place() const { return made ? made->call : call; }  // where it is there again
  };
  struct Known {
    Made made;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so that nothing else gets its address
  };

  std::optional<Made> made_of(const at::Tensor& tensor) const;
  Input input_of(const at::Tensor& tensor, Position position);
  bool is_outside(const at::Tensor& tensor) const;
  bool would_be_leaf(const Input& input) const;
  bool inputs_are_as_they_were() const;
  void offload();
  void offload(Kept& kept);
  at::Tensor value_of(const Kept& kept) const;
  at::Tensor value_of(const Input& input, const std::vector<Stack>& results) const;
  void run_again();
  void take_again(Saved& saved, const at::Tensor& tensor) const;
  [[noreturn]] void refuse_difference(const std::string& difference) const;

  const std::string unit_;
  const RandomState random_;
  const AutocastSettings autocast_;
  std::vector<Call> calls_;
  std::vector<Saved> saved_;
  std::shared_ptr<OffloadedTensors> offloaded_;  // null: nothing
  std::vector<at::Tensor> back_;                 // those, while backward is here
  std::atomic<size_t> unpacked_ = 0;             // how often
  bool in_call_ = false;
  bool replayable_ = true;
  // While it is recorded.
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_set<const c10::StorageImpl*> outside_;  // storages of inputs
};

}  // namespace coupler
