// Agreement: before a collective over values moves anything, all ranks make sure that they call the
// same one with values of the same form. It costs one all-gather of 32 bytes; descriptions travel
// only where ranks differ. Whatever is wrong, every rank throws and the communicator remains
// usable. Used by the thread that trains; collective.
#pragma once

#include <coupler/error.h>
#include <coupler/nested.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace coupler {

// 128 bits of what ranks must agree on: two chains of the hash that orders of operations use.
class ClaimHash {
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
  kButRows,  // all but dimension 0
  kNone,     // only how many there are
};

// What one rank brings to a collective.
struct Claim {
  std::string operation;                      // "reduce(mean)", with the arguments that must agree
  const detail::NestedView* value = nullptr;  // null: the operation is all there is
  SameSizes same = SameSizes::kAll;
  int64_t number = 0;            // for the others to know
  std::optional<Error> problem;  // why this rank cannot take part
};

// Every rank's number. Throws this rank's problem; a problem of another rank, naming it; and
// Error(kMismatch) naming two ranks, the place in the value and what each has there.
std::vector<int64_t> agree(Communicator& comm, const Claim& claim);

}  // namespace coupler
