#include "dispatch/unit_plan.h"

#include <utility>

namespace coupler {
namespace {

constexpr size_t kAlignment = 64;  // preferred by kernels

// Files align tensors to 8 bytes or more, so gaps between neighbors are smaller than kAlignment.
bool follows(const PlannedWeights& unit, const PlacedTensor& tensor, size_t most) {
  const FilePlace& place = tensor.value.place;
  if (unit.place.file == nullptr || place.file != unit.place.file) return false;
  const uint64_t end = unit.place.begin + unit.bytes;
  return place.begin >= end && place.begin - end < kAlignment &&
         place.begin - unit.place.begin + tensor.bytes() <= most;
}

void append(PlannedWeights& unit, size_t index, const PlacedTensor& tensor) {
  const bool in_file = unit.place.file != nullptr;
  const size_t offset = in_file ? tensor.value.place.begin - unit.place.begin
                                : (unit.bytes + kAlignment - 1) / kAlignment * kAlignment;
  unit.tensors.push_back(index);
  unit.offsets.push_back(offset);
  unit.bytes = offset + tensor.bytes();
}

}  // namespace

std::vector<PlannedWeights> plan_units(const std::vector<PlacedTensor>& tensors, c10::Device device,
                                       size_t most) {
  std::vector<PlannedWeights> units;
  const PlacedTensor* before = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PlacedTensor& tensor = tensors[i];
    if (tensor.runs != device || (tensor.stays() && device.is_cpu() && tensor.packed == nullptr))
      continue;
    const bool in_file = device.is_cpu() && tensor.value.place.file != nullptr;
    const bool together = before != nullptr && (in_file ? follows(units.back(), tensor, most)
                                                        : units.back().place.file == nullptr &&
                                                              before->module == tensor.module &&
                                                              before->stays() == tensor.stays());
    if (!together) {
      units.emplace_back();
      if (in_file) units.back().place = tensor.value.place;
    }
    append(units.back(), i, tensor);
    before = &tensor;
  }
  return units;
}

}  // namespace coupler
