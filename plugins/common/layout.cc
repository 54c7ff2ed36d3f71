#include "common/layout.h"

#include <algorithm>

namespace db {

std::vector<Bounds> row_bounds(const Model& model, const UnitDraft& draft, int32_t ranks) {
  const auto n = static_cast<uint64_t>(ranks);
  std::vector<Bounds> all;
  for (const size_t index : draft.parameters) {
    const ModelParameter& parameter = model.parameters[index];
    const uint64_t rows = parameter.rows;
    const uint64_t width = rows > 0 ? parameter.elements / rows : 0;
    const uint64_t chunk = rows / n + (rows % n > 0 ? 1 : 0);
    Bounds& bounds = all.emplace_back(1, 0);
    for (uint64_t row = 0; bounds.size() <= n;) {
      row += std::min(chunk, rows - row);
      bounds.push_back(row * width);
    }
  }
  return all;
}

std::vector<Bounds> flat_bounds(const Model& model, const UnitDraft& draft, int32_t ranks) {
  constexpr uint64_t kAlignment = 16;
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t total = count_elements(model, draft);
  const uint64_t step = total / n >= kAlignment ? kAlignment : 1;
  Bounds cuts;
  for (uint64_t r = 0; r < n; ++r) {
    const uint64_t exact = total / n * r + total % n * r / n;  // total * r / n without overflow
    cuts.push_back(exact);
  }
  cuts.push_back(total);
  std::vector<Bounds> all;
  uint64_t begin = 0;
  for (const size_t index : draft.parameters) {
    const uint64_t elements = model.parameters[index].elements;
    // The host aligns the start of every parameter, so alignment is relative to that start.
    for (uint64_t& cut : cuts) {
      if (cut > begin && cut < begin + elements) cut = begin + (cut - begin) / step * step;
    }
    Bounds& bounds = all.emplace_back();
    for (const uint64_t cut : cuts)
      bounds.push_back(std::clamp(cut, begin, begin + elements) - begin);
    begin += elements;
  }
  return all;
}

}  // namespace db
