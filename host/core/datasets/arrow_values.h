// Features and values of what Arrow's C data interface describes. Pure functions, any thread.
#pragma once

#include <coupler/row.h>

#include <cstdint>

#include "datasets/arrow_abi.h"

namespace coupler::datasets {

// Throws Error(kUnsupported) naming the column for a type that rows cannot have (decimals,
// durations, unions, views).
Feature feature_of_arrow(const ArrowSchema& schema);

// The value at a position of an array of this type, which feature_of_arrow accepts. The array's
// contents were checked. Throws Error(kUnsupported) for an unsigned integer above 2^63 - 1.
Value value_of_arrow(const ArrowSchema& schema, const ArrowArray& array, int64_t position);

}  // namespace coupler::datasets
