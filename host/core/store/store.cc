#include "store/store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/socket_io.h"

namespace coupler {

// For stores without an operation for several keys.
std::vector<std::optional<std::string>> Store::get_ranks(const std::string& prefix, int count,
                                                         std::chrono::nanoseconds timeout) {
  const auto deadline = deadline_after(timeout);
  std::vector<std::optional<std::string>> values;
  for (int rank = 0; rank < count; ++rank) {
    const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
    values.push_back(
        get(fmt::format("{}/{}", prefix, rank), std::max(left, std::chrono::nanoseconds(0))));
  }
  return values;
}

std::optional<Bytes32> Store::derived_key(std::string_view) const { return std::nullopt; }

std::string standing_key(int rank) { return kStandingPrefix + std::to_string(rank); }

}  // namespace coupler
