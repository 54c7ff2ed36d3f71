// Unit: parameters that become resident and are released together. ManagedStorage: what the storage
// of one parameter carries. Both belong to a Residency, which controls access.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "residency/buffer_pool.h"
#include "residency/residency_policy.h"

namespace coupler::residency {

class PackedFormat;
class Residency;
struct Unit;

// The context of a managed storage's DataPtr: leads the intercept from a tensor (the parameter, a
// view of it, a saved copy of either) to its unit.
struct ManagedStorage {
  Unit* unit = nullptr;
  c10::intrusive_ptr<c10::StorageImpl> storage;
  std::string name;                // of the parameter
  size_t offset = 0;               // in the unit's memory, bytes
  c10::Device device = c10::kCPU;  // of the unit's memory

  // For a packed parameter: its form and metadata. Its storage never has memory, so that packed
  // bytes are never mistaken for values; `memory` points to them.
  std::shared_ptr<const PackedFormat> packed;
  int64_t packed_rows = 0, packed_numel = 0;  // the parameter's first size, and elements
  c10::ScalarType packed_type = c10::kFloat;  // the parameter's type as operations see it
  const void* memory = nullptr;               // null: released; read under a pin

  // Null if the storage is not managed.
  static ManagedStorage* of(const c10::StorageImpl& storage);
  void point_to(void* unit_memory);  // null: released
};

// `used` and `last_use` are guarded by the Residency's mutex.
struct Unit : UnitState {
  Residency* residency = nullptr;
  std::string name;
  // The device of its memory and of operations on it. If set, an operation's other arguments are
  // moved there (intercept.h); otherwise all is on the CPU.
  std::optional<c10::Device> device;
  // Whether a unit of this process has one: only then are results marked for the intercept.
  inline static std::atomic<bool> any_on_device{false};
  // Belongs to a model placed by a device map: it cannot be moved elsewhere.
  bool placed = false;
  // The types operations on it compute in and return, if not those the model was built in.
  std::optional<c10::ScalarType> compute_type, output_type;
  std::vector<std::unique_ptr<ManagedStorage>> storages;

  std::atomic<int> writable{0};  // scopes in which its parameters may be written
  // Whether operations may write to it at any time; a release passes what they wrote to the source.
  bool writes_back = false;
  std::atomic<bool> written{false};  // since it became resident; set under a pin

  // On a device: the number of the last arrival, which streams must wait for before they use it.
  std::atomic<uint64_t> arrival{0};

  // Guarded by the Residency's mutex.
  std::shared_ptr<c10::Event> arrived;  // the event of that arrival; null: nothing to wait for
  BufferPool::Buffer memory;            // empty if the source has lent its own
  int come_again = 0;                   // how often it arrived while already resident
};

// Source: where the units of one Residency come from (peers, a disk, a mapped file). Calls come
// from different threads; fill(), lend(), agree() and has_room_ahead() are called one at a time.
class Source {
 public:
  virtual ~Source() = default;

  // Agrees which unit is filled next when this process wants one: all ranks that share units must
  // fill the same one. If the result is not `wanted`, the caller fills it and asks again. Throws
  // Error.
  virtual size_t agree(size_t wanted) { return wanted; }

  // Whether the unit may come before it is needed; if not, it comes when it is. Sources whose ranks
  // share units always return true.
  virtual bool has_room_ahead([[maybe_unused]] size_t unit) { return true; }

  // Returns memory that already holds the whole unit, valid until take_back(); null if there is
  // none and fill() must be called. Throws Error.
  virtual void* lend([[maybe_unused]] size_t unit) { return nullptr; }
  virtual void take_back([[maybe_unused]] size_t unit) {}

  // Writes the whole unit to `memory`, which belongs to the pool; on a device the copy may still be
  // in flight on the thread's stream. Throws Error.
  virtual void fill(size_t unit, void* memory) = 0;

  // Copies the part that this process owns from `memory`, which holds the whole unit.
  virtual void store(size_t unit, const void* memory) = 0;

  // The same for a unit that was written to and is being released (Unit::written); may return
  // before it is done. The next fill() throws errors that occur later.
  virtual void write_back(size_t unit, BufferPool::Buffer memory) { store(unit, memory.data()); }
};

// Where units are kept while they are not resident. Call add() before any other call for that unit;
// other units may be in use meanwhile.
class OffloadSource : public Source {
 public:
  // Adds zeroed space for the next unit. Throws Error if there is none.
  virtual void add(size_t bytes) = 0;
};

// InUse: keeps the values of a tensor in memory while pointers into them are used. Operations on
// tensors do not need it: the intercept (intercept.h) does it for them. [any-thread]
class InUse {
 public:
  enum class Access {
    kRead,
    kWrite,    // writes a part, or all
    kReplace,  // writes the whole storage: its old contents may be lost
  };
  // Ignores a tensor that is not managed. A managed one may only be read, unless its unit writes
  // back. Throws Error if its values cannot be fetched.
  explicit InUse(const at::Tensor& tensor, Access access = Access::kRead);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  // Writes made since construction need not be kept.
  void drop_writes();

 private:
  Unit* unit_ = nullptr;
  bool written_ = false;  // the unit's `written` before
};

// Calls `visit` with all tensors, in order: managed ones one at a time, so that they need not be in
// memory together, the others in as few lists as possible.
void visit_in_groups(const std::vector<at::Tensor>& tensors,
                     const std::function<void(at::TensorList)>& visit);

}  // namespace coupler::residency
