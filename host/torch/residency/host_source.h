// HostSource: units of a device's memory that are stored in host memory. Copies go to the calling
// thread's stream, in order with its computations; with pinned memory the host does not wait.
// [any-thread]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "residency/unit.h"

namespace coupler::residency {

class HostSource : public OffloadSource {
 public:
  HostSource(c10::Device device, bool pinned) : device_(device), pinned_(pinned) {}

  void add(size_t bytes) override;
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

// StagedSource: units of a device's memory stored by a source that works in host memory (a disk).
// Each unit is staged through host memory and has arrived when a call returns. [any-thread]
class StagedSource : public OffloadSource {
 public:
  // pages: the memory that `source` fills; must outlive this.
  StagedSource(std::unique_ptr<OffloadSource> source, BufferPool& pages, c10::Device device)
      : source_(std::move(source)), pages_(pages), device_(device) {}

  void add(size_t bytes) override;
  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;
  void write_back(size_t unit, BufferPool::Buffer memory) override;

 private:
  BufferPool::Buffer brought(size_t unit, const void* memory);
  size_t bytes_of(size_t unit) const;

  const std::unique_ptr<OffloadSource> source_;
  BufferPool& pages_;
  const c10::Device device_;
  mutable std::mutex mutex_;
  std::vector<size_t> bytes_;  // by unit
};

}  // namespace coupler::residency
