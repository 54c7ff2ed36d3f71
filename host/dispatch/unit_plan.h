// How the tensors of a model that are fetched for use are put into units. A pure function.
#pragma once

#include <cstddef>
#include <vector>

#include "dispatch/placed_tensor.h"

namespace coupler {

struct PlannedWeights {
  std::vector<size_t> tensors;  // of the list given
  std::vector<size_t> offsets;  // of each in the unit's memory, bytes
  size_t bytes = 0;
  FilePlace place;  // where the unit is used as it lies in its file; else it is copied
};

// Only tensors that do not stay on the CPU anyway, and packed ones: those run on `device`. On the
// CPU neighbours in one file make one unit of at most `most` bytes, or of one tensor; elsewhere a
// unit is what a module has itself.
inline constexpr size_t kUnitBytes = size_t{16} << 20;
inline constexpr size_t kLeastUnitBytes = size_t{1} << 20;  // where memory is short
std::vector<PlannedWeights> plan_units(const std::vector<PlacedTensor>& tensors, c10::Device device,
                                       size_t most = kUnitBytes);

}  // namespace coupler
