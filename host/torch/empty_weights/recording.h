// Recording: what a thread's EmptyWeights scopes recorded: the operations that make and fill
// tensors, in order. It identifies tensors by storage and geometry, never by handle, so views,
// detached and copied handles need no special handling, and an operation that only makes a view is
// not recorded.
//
// Each meta storage created in a scope carries a tag: its number in the recording, which the tag
// keeps alive. The recording thread appends; any thread may replay (replay.h) or drop tensors
// meanwhile.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace coupler::empty_weights {

// The state of LibTorch's default CPU generator as a value. The functions take the generator's own
// lock; any thread may call them.

struct GeneratorState {
  at::mt19937 engine;
  std::optional<float> next_float;  // the cached second sample of a normal pair
  std::optional<double> next_double;
};

GeneratorState read_generator();
void write_generator(const GeneratorState& state);
bool same_state(const GeneratorState& a, const GeneratorState& b);

// A state derived from this one whose stream is separate from it, so that draws from it never yield
// numbers that belong to a weight.
GeneratorState derived_state(const GeneratorState& state);

// Restores the generator's state on destruction.
class GeneratorGuard {
 public:
  GeneratorGuard() : state_(read_generator()) {}
  ~GeneratorGuard() { write_generator(state_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  GeneratorState state_;
};

// Where a tensor is stored: its storage, and the tensor's geometry in it.
struct TensorGeometry {
  uint64_t storage = 0;
  size_t bytes = 0;  // of the whole storage
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;
  c10::DimVector sizes, strides;
  bool conjugate = false, negative = false;
};

// The geometry of a dense tensor; the caller fills in `storage`.
TensorGeometry geometry_of(const at::Tensor& tensor);

// A new tensor on `storage`, on the device of the key (CPU or Meta).
at::Tensor tensor_on(const c10::Storage& storage, const TensorGeometry& geometry,
                     c10::DispatchKey device);

// The index of an operation's argument or result, and of the element if it is a list (else -1).
struct Position {
  size_t index = 0;
  int element = -1;
};

struct RecordedInput {
  Position position;
  at::Tensor constant;  // a tensor from outside the scope; undefined for a recorded one
  int64_t version = 0;  // of the constant when recorded
  TensorGeometry geometry;
  bool reads = true;    // false if the operation overwrites the old values unread
  bool writes = false;  // in place
  bool covers = false;  // overwrites the whole storage
};

struct RecordedOutput {  // only tensors whose storage is new
  Position position;
  TensorGeometry geometry;
};

// Bytes written through the data pointer of a tensor fresh from at::empty.
struct RawContent {
  std::unique_ptr<char[]> bytes;
};

struct RecordedOperation {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // as called, without the tensors (see inputs)
  std::vector<RecordedInput> inputs;
  std::vector<RecordedOutput> outputs;
  at::ScalarType default_dtype = at::kFloat;
  std::shared_ptr<RawContent> content;
  bool random = false;  // draws from the default generator
  // The generator's state, if it changed since the previous random operation: by manual_seed, or by
  // draws outside. Unset: continues where the previous operation ended.
  std::shared_ptr<const GeneratorState> before;
  // The generator's state at its end; known once it has run.
  std::shared_ptr<const GeneratorState> after;
};

class Recording;

struct StorageTag {
  std::shared_ptr<Recording> recording;
  uint64_t id = 0;
  std::shared_ptr<RawContent> content;  // set while the data pointer may be used
};

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  // The tag of a tensor's storage; null if it has none.
  static StorageTag* tag_of(const at::Tensor& tensor);

  // Prevents trimming during its lifetime: held while recording or replaying.
  class Use {
   public:
    explicit Use(std::shared_ptr<Recording> recording);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::shared_ptr<Recording> recording_;
  };

  // Tags the storage of a new meta tensor and returns its number. With `content`, the data pointer
  // may be used until close_data; otherwise using it throws.
  uint64_t adopt(const at::Tensor& fresh, const std::shared_ptr<RawContent>& content);

  // Makes later use of this storage's data pointer throw. Returns its raw content, if any.
  static std::shared_ptr<RawContent> close_data(const at::Tensor& tensor);

  // Appends. For a random operation, `found` is the generator's state; the generator is then left
  // at a mark, which shows the next one whether it was moved.
  void append(RecordedOperation operation, const std::optional<GeneratorState>& found);

  // Remembers the version of a tensor at the end of a scope; ignores dead tensors.
  void remember_version(const c10::weak_intrusive_ptr<c10::TensorImpl>& tensor);
  // False if the tensor was changed in place since then.
  bool unchanged(const at::Tensor& tensor) const;

  // For replays. Hold lock() to access operations() and `after` of its elements; the rest of an
  // element does not change while a Use is alive.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  std::deque<RecordedOperation>& operations() { return operations_; }

 private:
  struct Version {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    uint32_t version;
  };
  static void release(void* context);
  // Removes operations that no tensor needs any more. Call under the lock; free the result after.
  std::deque<RecordedOperation> trim();

  mutable std::mutex mutex_;
  std::deque<RecordedOperation> operations_;
  std::unordered_set<uint64_t> alive_;  // storages
  bool some_died_ = false;              // since trim()
  std::unordered_map<const c10::TensorImpl*, Version> versions_;
  uint64_t next_storage_ = 1;
  int uses_ = 0;
  std::optional<GeneratorState> mark_;
};

// Finds and replaces tensors among boxed arguments or results, single or in lists.

// Calls `visit` for each defined tensor, in order.
void for_each_tensor(const std::vector<c10::IValue>& values,
                     const std::function<void(Position, const at::Tensor&)>& visit);

// Calls `visit` with every defined tensor in one value, lists of lists included.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

at::Tensor get(const std::vector<c10::IValue>& values, Position position);

// Copies a list before changing it, since copies of an IValue share their list.
void put(std::vector<c10::IValue>& values, Position position, const at::Tensor& tensor);

}  // namespace coupler::empty_weights
