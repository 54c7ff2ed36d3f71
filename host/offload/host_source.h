// HostSource: units of a device's memory whose place is host memory. Copies go to the calling
// thread's stream, in the order of what it computes, and nobody waits for them on the host.
//
// add() before any other call for that unit; the rest is [any-thread].
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

  // Room for the next unit, zeros.
  void add(size_t bytes);

  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;

 private:
  struct Place {
    at::Tensor bytes;                    // on the CPU
    std::shared_ptr<c10::Event> stored;  // what was written last has arrived; null: it has
  };
  Place place(size_t unit) const;

  const c10::Device device_;
  const bool pinned_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;  // by unit
};

}  // namespace coupler
