// Block sizes for tests.
#pragma once

#include <cstdint>

namespace coupler {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace coupler
