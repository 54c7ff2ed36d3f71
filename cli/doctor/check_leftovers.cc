#include <fmt/format.h>

#include <numeric>

#include "base/byte_size.h"
#include "cli/doctor/checks.h"
#include "cli/launch/leftovers.h"
#include "cli/text/table.h"

namespace coupler::cli {

Findings check_leftovers() {
  const Leftovers found = all_leftovers(Then::kKeep);
  if (found.empty()) {
    return {{Level::kOk, "no leftovers of killed jobs"}};
  }
  const uint64_t bytes =
      std::accumulate(found.begin(), found.end(), uint64_t{0},
                      [](uint64_t sum, const Leftover& one) { return sum + one.bytes; });
  return {{Level::kNote,
           one_line(fmt::format("killed jobs left {} ({}), {} in total", found.front().path,
                                found.size() == 1 ? found.front().what
                                                  : fmt::format("and {} more", found.size() - 1),
                                format_byte_size(bytes))),
           "it takes up memory or disk space and is no longer in use", "coupler doctor --clean"}};
}

}  // namespace coupler::cli
