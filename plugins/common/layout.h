// Which rank owns which elements of a unit's parameters: the bounds of coupler/sharding.h, N + 1
// numbers per parameter for N ranks. Pure functions; [any-thread].
#pragma once

#include <vector>

#include "common/units.h"

namespace db {

using Bounds = std::vector<uint64_t>;

// Splits each parameter into chunks of ceil(rows / ranks) rows, as torch.chunk does on dimension 0:
// the last ranks may own fewer rows or none. Rank 0 owns a scalar.
std::vector<Bounds> row_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

// Splits the concatenated parameters, as one flat buffer, into equal parts up to rounding. If every
// rank gets at least 16 elements, cuts are aligned to 16 elements from a parameter's start.
std::vector<Bounds> flat_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

}  // namespace db
