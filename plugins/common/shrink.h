// The arguments of the extension coupler.shrink/1, checked. Pure functions; [any-thread].
#pragma once

#include <coupler/shrink.h>

#include <cstdint>
#include <vector>

#include "common/error.h"

namespace db {

// *ranks: the excluded ranks in ascending order. An error names the rank or flag that is wrong.
Failure check_excluded(int32_t rank, int32_t size, const int32_t* excluded, uint64_t count,
                       uint64_t flags, std::vector<int32_t>* ranks);

}  // namespace db
