// Groups the tensors of a model that are fetched for use into units. A pure function.
#pragma once

#include <cstddef>
#include <vector>

#include "dispatch/placed_tensor.h"

namespace coupler {

struct PlannedWeights {
  std::vector<size_t> tensors;  // indices into the given list
  std::vector<size_t> offsets;  // of each in the unit's memory, bytes
  size_t bytes = 0;
  FilePlace place;  // if the unit is used in place in its file; else it is copied
};

// Plans the tensors that run on `device`, except those that stay on the CPU unpacked. On the CPU,
// neighbors in one file form one unit of at most `most` bytes, or of one tensor; otherwise a unit
// holds a module's own tensors.
inline constexpr size_t kUnitBytes = size_t{16} << 20;
inline constexpr size_t kLeastUnitBytes = size_t{1} << 20;  // if memory is short
std::vector<PlannedWeights> plan_units(const std::vector<PlacedTensor>& tensors, c10::Device device,
                                       size_t most = kUnitBytes);

}  // namespace coupler
