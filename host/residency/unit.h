// Unit: parameters that become resident and are released together, and Home: what the storage of
// one of them carries. Belongs to a Residency, which says who may touch what.
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

// The context of a managed storage's DataPtr: how the intercept comes from a tensor (the parameter,
// a view of it, a saved copy of either) to its unit.
struct Home {
  Unit* unit = nullptr;
  c10::intrusive_ptr<c10::StorageImpl> storage;
  std::string name;                // of the parameter
  size_t offset = 0;               // in the unit's memory, bytes
  c10::Device device = c10::kCPU;  // of the unit's memory

  // Of a parameter that lies packed: how, and what it is beside. Its storage never has memory, so
  // that nobody takes packed bytes for values; `memory` has.
  std::shared_ptr<const Packed> packed;
  int64_t packed_rows = 0, packed_numel = 0;  // the parameter's first size, and elements
  c10::ScalarType packed_type = c10::kFloat;  // what the parameter is to operations
  const void* memory = nullptr;               // null: released; read under a pin

  // Null where the storage is not managed.
  static Home* of(const c10::StorageImpl& storage);
  void point_to(void* unit_memory);  // null: released
};

struct Unit {
  Residency* residency = nullptr;
  size_t index = 0;
  std::string name;
  size_t bytes = 0;
  bool sticky = false;  // kept until it is released by name or with all others
  // Where operations on it run, and its memory is. Where it is told, what else an operation takes
  // is brought there (intercept.h); else all is on the CPU.
  std::optional<c10::Device> device;
  // Of a model that lies where a device map says: it cannot be moved elsewhere.
  bool placed = false;
  // What operations on it compute in and give back, where that is not what the model was built in.
  std::optional<c10::ScalarType> compute_type, output_type;
  std::vector<std::unique_ptr<Home>> homes;

  // A unit that is pinned stays where it is; who pins looks at resident afterwards.
  std::atomic<int> pins{0};
  std::atomic<bool> resident{false};
  std::atomic<int> writable{0};  // scopes in which its parameters may be written
  // Whether operations may write to it at any time: what they wrote is the source's at release.
  bool writes_back = false;
  std::atomic<bool> written{false};  // since it became resident; set under a pin

  // On a device: the number of the last arrival, which streams have to wait for before they use it.
  std::atomic<uint64_t> arrival{0};

  // The Residency's, under its mutex.
  std::shared_ptr<c10::Event> arrived;  // what that was; null: nothing to wait for
  BufferPool::Buffer memory;            // none where the source has lent its own
  bool used = false;                    // since it became resident
  int come_again = 0;                   // how often it came while it was here
  uint64_t last_use = 0;
};

}  // namespace coupler
