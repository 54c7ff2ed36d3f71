// Tensors that lie in memory with any strides, in row-major order. A pure function; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/weight_source.h"

namespace coupler {

// Whether the elements lie one behind the other in that order already.
bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Gives the sink the elements of `bytes` each, a chunk at a time; what lies in order already comes
// from where it is. Strides are in elements, none negative, one for each dimension; `first` is the
// first element.
void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink);

}  // namespace coupler
