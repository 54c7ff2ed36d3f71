// Fingerprint: what a rank called, in two words, so that ranks can compare collectives before they
// touch data. Plain values; [any-thread].
#pragma once

#include <cstdint>
#include <string>

#include "common/error.h"
#include "common/op.h"

namespace db {

struct Fingerprint {
  uint64_t what = 0;  // kind, dtype, reduce and root
  uint64_t size = 0;  // the count, or a hash of the counts that all ranks must share

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

Fingerprint fingerprint(const Op& op, int32_t ranks);

// "all_reduce of 10 f32, sum".
std::string describe(const Fingerprint& called);

// The error of a rank whose collective number `number` differs from that of another rank.
Failure disagreement(uint64_t number, int32_t rank, const Fingerprint& called, int32_t other,
                     const Fingerprint& theirs);

}  // namespace db
