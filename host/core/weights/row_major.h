// Reads tensors with any strides in row-major order. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/weight_source.h"

namespace coupler {

// Whether the elements are already adjacent in that order.
bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Passes the elements, of `bytes` each, to the sink in chunks; data already in order is not copied.
// Strides are in elements, none negative, one per dimension; `first` is the first element.
void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink);

}  // namespace coupler
