// Who owns which elements of a unit's parameters: the bounds of coupler/sharding.h, for N ranks
// N + 1 numbers a parameter. Pure functions; [any-thread].
#pragma once

#include <vector>

#include "common/units.h"

namespace db {

using Bounds = std::vector<uint64_t>;

// Every parameter by itself in chunks of ceil(rows / ranks) rows, as torch.chunk cuts dimension 0:
// the last ranks may own fewer or none. A scalar is rank 0's.
std::vector<Bounds> row_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

// The parameters one after another as one flat buffer in equal parts, up to rounding; cuts are
// multiples of 16 elements of a parameter where every rank has that many, so that parts are
// aligned.
std::vector<Bounds> flat_bounds(const Model& model, const UnitDraft& draft, int32_t ranks);

}  // namespace db
