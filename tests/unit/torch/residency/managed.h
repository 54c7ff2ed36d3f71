// Managed: a module whose parameters live in a Residency, with one unit per module that has its own
// parameters, as strategy/sharded_model_make.cc makes them; but over host memory, without ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "residency/residency.h"
#include "strategy/model.h"

namespace coupler::testing {

// The values and the record of calls of a HostMemorySource. [any-thread]
struct HostMemory {
  struct Fill {
    size_t unit;
    std::thread::id thread;
  };

  std::vector<std::vector<char>> units;  // values; written by stores
  // Called before each fill by the filling thread, without a lock; may sleep and may throw.
  std::function<void(size_t unit)> before_fill;
  std::atomic<bool> room_ahead{true};  // for units that are not needed yet

  std::vector<Fill> fills() const;
  size_t fill_count() const { return fills().size(); }
  // By threads other than the caller.
  size_t fills_elsewhere() const;
  size_t fills_of(size_t unit) const;
  void forget_fills();

  mutable std::mutex mutex;
  std::vector<Fill> log;
};

// Test double of a Source: copies from host memory.
class HostMemorySource : public residency::Source {
 public:
  explicit HostMemorySource(HostMemory& memory) : memory_(memory) {}
  bool has_room_ahead(size_t) override { return memory_.room_ahead; }
  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;

 private:
  HostMemory& memory_;
};

struct ManagedOptions {
  int prefetch = 0;
  size_t live_bytes = 0;
  std::optional<at::ScalarType> compute_type, output_type;
};

class Managed {
 public:
  explicit Managed(const strategy::Model& model, const ManagedOptions& options = {});

  residency::Residency& residency() { return *residency_; }
  residency::Unit& unit(const std::string& name);
  // Ends the Residency early; the module's parameters are lost.
  void destroy() { residency_.reset(); }

  size_t resident_units() const;
  size_t largest_unit() const;
  size_t total_bytes() const;

  HostMemory memory;
  residency::BufferPool pool;

 private:
  void add_unit(const std::string& name,
                const std::vector<const strategy::ModelParameter*>& parameters,
                const ManagedOptions& options);

  std::unique_ptr<residency::Residency> residency_;
};

}  // namespace coupler::testing
