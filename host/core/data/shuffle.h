// The order of samples in an epoch: a function of (count, seed, epoch) alone, the same for every
// world size, platform and version of Coupler. Pure; any thread may call it.
//
// The specification, with mix the finalizer of splitmix64 and G = 0x9e3779b97f4a7c15, all modulo
// 2^64:
//   state  = mix(mix(seed) + epoch + 1)
//   draw() = state += G, mix(state)
//   below(b): the high word of draw() × b, drawn again while the low word is less than 2^64 mod b
//   order  = 0, 1, …, count-1; for i from count-1 down to 1, swap order[i] and order[below(i+1)]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coupler {

// Fills `order`, reusing its memory.
void shuffled_order(size_t count, uint64_t seed, uint64_t epoch, std::vector<size_t>& order);

}  // namespace coupler
