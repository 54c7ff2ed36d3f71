// Sizes as users write them: "10GB", "1.5 GiB", "4096"; KB, MB, GB and TB are powers of 1000, KiB,
// MiB, GiB and TiB of 1024, and a number without a unit is bytes. Pure functions.
//
// Units must be spelled exactly so: "Gb" means bits elsewhere, and "gb" could be either.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

// In bytes, rounded down; at least 1 and at most 2^63 - 1. Throws Error(kInvalidArgument) naming
// `what`, the key or option that the text belongs to.
uint64_t parse_byte_size(std::string_view text, const std::string& what);

// For people: "0 B", "1.5 KiB", "12.0 GiB".
std::string format_byte_size(uint64_t bytes);

}  // namespace coupler
