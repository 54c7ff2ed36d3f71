// Consistency check: before a collective over values sends any data, all ranks check that they call
// the same collective with values of the same form. This costs one all-gather of 32 bytes;
// descriptions are sent only if ranks differ. On any problem every rank throws, and the
// communicator remains usable. Used by the training thread; collective.
#pragma once

#include <coupler/error.h>
#include <coupler/nested.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace coupler {

// A 128-bit hash of what ranks must agree on: two chains of the hash for the order of operations.
class SignatureHash {
 public:
  void add(uint64_t word);
  void add(std::string_view text);
  uint64_t low() const { return low_; }
  uint64_t high() const { return high_; }

 private:
  uint64_t low_ = 0x243f6a8885a308d3u, high_ = 0x13198a2e03707344u;
};

// Which sizes of a value's tensors must be the same on every rank.
enum class SameSizes {
  kAll,
  kButRows,  // all except dimension 0
  kNone,     // only the number of dimensions
};

// What one rank brings to a collective.
struct CollectiveSignature {
  std::string operation;                      // "reduce(mean)", with the arguments that must agree
  const detail::NestedView* value = nullptr;  // null: only the operation is compared
  SameSizes same = SameSizes::kAll;
  int64_t number = 0;            // sent to the other ranks
  std::optional<Error> problem;  // why this rank cannot take part
};

// Returns every rank's number. Throws this rank's problem; another rank's problem, naming that
// rank; or Error(kMismatch) naming two ranks, the place in the value and what each has there.
std::vector<int64_t> check_consistency(comm::Communicator& comm,
                                       const CollectiveSignature& signature);

// numbers: what check_consistency has returned. Throws Error(code) on every rank if they are not
// all equal: "OPERATION: rank 1 DOES than rank 0", where `does` is such as "finds other tensors".
// The error's rank is the first that differs from rank 0.
void require_same(const std::vector<int64_t>& numbers, const std::string& operation,
                  const std::string& does, ErrorCode code, ErrorDetail detail);

// The problem of an operation that is given a rank outside of the communicator.
Error no_such_rank(const std::string& operation, const comm::Communicator& comm);

}  // namespace coupler
