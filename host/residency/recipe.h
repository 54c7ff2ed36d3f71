// Recipe: what a thread's EmptyWeights scopes recorded: the operations that make and fill tensors,
// in order. Tensors stand in it by storage and geometry, never by handle, so views, detached and
// copied handles need no care, and an operation that only makes a view is not recorded.
//
// Each meta storage born in a scope carries a tag: its number in the recipe, which it keeps alive.
// The recording thread appends; any thread may replay (see replay.h) or drop tensors meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "residency/generator_state.h"

namespace coupler {

// Where a tensor lies: which storage, and how it looks upon it.
struct Place {
  uint64_t storage = 0;
  size_t bytes = 0;  // of the whole storage
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;
  c10::DimVector sizes, strides;
  bool conjugate = false, negative = false;
};

// The geometry of a dense tensor; `storage` is left for the caller.
Place geometry_of(const at::Tensor& tensor);

// A new tensor on `storage`, on the device of the key (CPU or Meta).
at::Tensor tensor_on(const c10::Storage& storage, const Place& place, c10::DispatchKey device);

// Which of an operation's arguments or results, and which element where it is a list.
struct Position {
  size_t index = 0;
  int element = -1;
};

struct Input {
  Position position;
  at::Tensor constant;  // a tensor from outside the scope; undefined for a recorded one
  int64_t version = 0;  // of the constant when it was recorded
  Place place;
  bool reads = true;    // false where the operation overwrites whatever was there
  bool writes = false;  // in place
  bool covers = false;  // overwrites the whole storage
};

struct Output {  // only tensors whose storage is new
  Position position;
  Place place;
};

// What was written through the data pointer of a tensor fresh from at::empty.
struct RawContent {
  std::unique_ptr<char[]> bytes;
};

struct Operation {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // as called, recorded tensors left out
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  at::ScalarType default_dtype = at::kFloat;
  std::shared_ptr<RawContent> content;
  bool random = false;  // draws from the default generator
  // Where the generator stood, if it had been moved since the previous random operation: by
  // manual_seed, or by draws outside. Unset: it draws where the previous one ended.
  std::shared_ptr<const GeneratorState> before;
  // Where it ends; known once it has run.
  std::shared_ptr<const GeneratorState> after;
};

class Recipe;

struct StorageTag {
  std::shared_ptr<Recipe> recipe;
  uint64_t id = 0;
  std::shared_ptr<RawContent> content;  // set while its data pointer may be used
};

class Recipe : public std::enable_shared_from_this<Recipe> {
 public:
  // The tag of a tensor's storage; null where it has none.
  static StorageTag* tag_of(const at::Tensor& tensor);

  // Keeps operations where they are for as long as it lives: while one records or replays.
  class Use {
   public:
    explicit Use(std::shared_ptr<Recipe> recipe);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Recipe* operator->() const { return recipe_.get(); }

   private:
    std::shared_ptr<Recipe> recipe_;
  };

  // Tags the storage of a new meta tensor and returns its number. With `content` the data pointer
  // may be used until close_data; else its use throws.
  uint64_t adopt(const at::Tensor& fresh, const std::shared_ptr<RawContent>& content);

  // From now on the use of this storage's data pointer throws. Returns its raw content, if any.
  static std::shared_ptr<RawContent> close_data(const at::Tensor& tensor);

  // Appends. For a random operation `found` is where the generator stood; it is then left at a
  // mark, by which the next one sees whether it has been moved.
  void append(Operation operation, const std::optional<GeneratorState>& found);

  // Remembers, at the end of a scope, the version of a tensor, dead ones apart.
  void remember_version(const c10::weak_intrusive_ptr<c10::TensorImpl>& tensor);
  // False where the tensor was changed in place since then.
  bool unchanged(const at::Tensor& tensor) const;

  // For replays. operations() and `after` of its elements under lock(); the rest of an element
  // stays as it is while a Use lives.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  std::deque<Operation>& operations() { return operations_; }

 private:
  struct Version {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    uint32_t version;
  };
  static void release(void* context);
  // Takes out what no tensor needs any more. Under the lock; the result is freed after it.
  std::deque<Operation> trim();

  mutable std::mutex mutex_;
  std::deque<Operation> operations_;
  std::unordered_set<uint64_t> alive_;  // storages
  bool some_died_ = false;              // since trim()
  std::unordered_map<const c10::TensorImpl*, Version> versions_;
  uint64_t next_storage_ = 1;
  int uses_ = 0;
  std::optional<GeneratorState> mark_;
};

}  // namespace coupler
