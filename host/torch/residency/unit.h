// Unit: parameters that become resident and are released together. Home: what the storage of one
// parameter carries. Both belong to a Residency, which controls access.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "residency/buffer_pool.h"

namespace coupler {

class Packed;
class Residency;
struct Unit;

// The context of a managed storage's DataPtr: leads the intercept from a tensor (the parameter, a
// view of it, a saved copy of either) to its unit.
struct Home {
  Unit* unit = nullptr;
  c10::intrusive_ptr<c10::StorageImpl> storage;
  std::string name;                // of the parameter
  size_t offset = 0;               // in the unit's memory, bytes
  c10::Device device = c10::kCPU;  // of the unit's memory

  // For a packed parameter: its form and metadata. Its storage never has memory, so that packed
  // bytes are never mistaken for values; `memory` points to them.
  std::shared_ptr<const Packed> packed;
  int64_t packed_rows = 0, packed_numel = 0;  // the parameter's first size, and elements
  c10::ScalarType packed_type = c10::kFloat;  // the parameter's type as operations see it
  const void* memory = nullptr;               // null: released; read under a pin

  // Null if the storage is not managed.
  static Home* of(const c10::StorageImpl& storage);
  void point_to(void* unit_memory);  // null: released
};

struct Unit {
  Residency* residency = nullptr;
  size_t index = 0;
  std::string name;
  size_t bytes = 0;
  bool sticky = false;  // kept until it is released by name or with all others
  // The device of its memory and of operations on it. If set, an operation's other arguments are
  // moved there (intercept.h); otherwise all is on the CPU.
  std::optional<c10::Device> device;
  // Belongs to a model placed by a device map: it cannot be moved elsewhere.
  bool placed = false;
  // The types operations on it compute in and return, if not those the model was built in.
  std::optional<c10::ScalarType> compute_type, output_type;
  std::vector<std::unique_ptr<Home>> homes;

  // A pinned unit stays where it is; the pinning thread checks `resident` afterwards.
  std::atomic<int> pins{0};
  std::atomic<bool> resident{false};
  std::atomic<int> writable{0};  // scopes in which its parameters may be written
  // Whether operations may write to it at any time; a release passes what they wrote to the source.
  bool writes_back = false;
  std::atomic<bool> written{false};  // since it became resident; set under a pin

  // On a device: the number of the last arrival, which streams must wait for before they use it.
  std::atomic<uint64_t> arrival{0};

  // Guarded by the Residency's mutex.
  std::shared_ptr<c10::Event> arrived;  // the event of that arrival; null: nothing to wait for
  BufferPool::Buffer memory;            // empty if the source has lent its own
  bool used = false;                    // since it became resident
  int come_again = 0;                   // how often it arrived while already resident
  uint64_t last_use = 0;
};

}  // namespace coupler
