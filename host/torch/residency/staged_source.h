// StagedSource: units of a device's memory stored by a source that works in host memory (a disk).
// Each unit is staged through host memory and has arrived when a call returns. [any-thread]
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "residency/source.h"

namespace coupler {

class StagedSource : public Source {
 public:
  // pages: the memory that `source` fills; must outlive this.
  StagedSource(std::unique_ptr<Source> source, BufferPool& pages, c10::Device device)
      : source_(std::move(source)), pages_(pages), device_(device) {}

  void add(size_t bytes) { bytes_.push_back(bytes); }  // of the next unit

  void fill(size_t unit, void* memory) override;
  void store(size_t unit, const void* memory) override;
  void put_away(size_t unit, BufferPool::Buffer memory) override;

 private:
  BufferPool::Buffer brought(size_t unit, const void* memory);

  const std::unique_ptr<Source> source_;
  BufferPool& pages_;
  const c10::Device device_;
  std::vector<size_t> bytes_;  // by unit
};

}  // namespace coupler
