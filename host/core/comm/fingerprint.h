// Fingerprint: what every rank must agree on about one operation, in 16 bytes, and its description
// as a string. Plain data; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

// Beyond the ABI's kinds: a split is collective, too, and part of the order.
constexpr db_kind kSplitKind = 100;

std::string_view kind_name(db_kind kind);        // "all_reduce"
std::string_view dtype_name(db_dtype dtype);     // "f32"
std::string_view reduce_name(db_reduce reduce);  // "sum"
uint64_t dtype_size(db_dtype dtype);             // 0 if unknown
bool is_reducing(db_kind kind);
bool is_rooted(db_kind kind);
bool is_pairwise(db_kind kind);

struct Fingerprint {
  uint64_t what = 0;   // kind, dtype, reduction and root (SEND and RECV: tag), packed
  uint64_t size = 0;   // the count, or a hash of the count array
  uint64_t shown = 0;  // the count to print: a V kind's sum

  db_kind kind() const { return static_cast<db_kind>(what & 0xff); }
  db_dtype dtype() const { return static_cast<db_dtype>(what >> 8 & 0xff); }
  db_reduce reduce() const { return static_cast<db_reduce>(what >> 16 & 0xff); }
  int32_t root() const { return static_cast<int32_t>(what >> 32); }
  bool operator==(const Fingerprint& other) const {
    return what == other.what && size == other.size;
  }
};

// Includes only what matters for the kind: a barrier has no dtype, a broadcast no reduction.
// ALL_TO_ALL_V's counts differ by rank: the order board compares them pair by pair.
Fingerprint fingerprint_of(const db_op& op, int world);
Fingerprint split_fingerprint(std::string_view name);

// The running hash of a sequence of operations.
inline uint64_t chain_hash(uint64_t chain, const Fingerprint& next) {
  chain = (chain ^ next.what) * 0x9e3779b97f4a7c15u;
  chain = ((chain ^ chain >> 29) + next.size) * 0xbf58476d1ce4e5b9u;
  return chain ^ chain >> 32;
}

// "all_reduce f32 x1000 sum", "broadcast i64 x3 from rank 1", "barrier"
std::string describe(const Fingerprint& operation);

}  // namespace coupler
