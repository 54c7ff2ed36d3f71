// The job's secret and what is computed from it. Plain functions, [any-thread].
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace coupler {

// 32 bytes only the processes of one job know, or a nonce, a session key, a MAC: all are this size.
using Bytes32 = std::array<uint8_t, 32>;

Bytes32 random_bytes32();  // from the kernel

Bytes32 hmac_sha256(const Bytes32& key, std::span<const uint8_t> data);

// Takes the same time wherever the first difference is.
bool equal_constant_time(const Bytes32& a, const uint8_t* b);

// Lower-case hexadecimal, for the job file; from_hex is false where text is not 64 such digits.
std::string to_hex(const Bytes32& bytes);
bool from_hex(std::string_view text, Bytes32& bytes);

}  // namespace coupler
