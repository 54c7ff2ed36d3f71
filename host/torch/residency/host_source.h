// HostSource: units of a device's memory that are stored in host memory. Copies go to the calling
// thread's stream, in order with its computations; with pinned memory the host does not wait.
//
// Call add() before any other call for that unit; the rest is [any-thread].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <mutex>
#include <vector>

#include "residency/source.h"

namespace coupler {

class HostSource : public Source {
 public:
  HostSource(c10::Device device, bool pinned) : device_(device), pinned_(pinned) {}

  // Adds zeroed memory for the next unit.
  void add(size_t bytes);

  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;

 private:
  struct Place {
    at::Tensor bytes;                    // on the CPU
    std::shared_ptr<c10::Event> stored;  // the last store; null: nothing to wait for
  };
  Place place(size_t unit) const;

  const c10::Device device_;
  const bool pinned_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;  // by unit
};

}  // namespace coupler
