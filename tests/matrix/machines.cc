#include "machines.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <charconv>

#include "base/text.h"

namespace coupler::matrix {

rendezvous::ProcessInfo place_on_machines(const std::string& sizes,
                                          rendezvous::ProcessInfo process) {
  int first = 0;
  for (const std::string& text : coupler::split(sizes, ',')) {
    int size = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, size);
    if (status != std::errc() || stop != end || size < 1) {
      throw Error(ErrorCode::kUsage, fmt::format("--machines: '{}' is not a number of ranks", text),
                  {.subject = "--machines", .hint = "give one for each machine, as in 2,1"});
    }
    if (process.rank >= first && process.rank < first + size) {
      process.local_rank = process.rank - first;
      process.local_world_size = size;
    }
    first += size;
  }
  if (first == process.world_size) return process;
  throw Error(ErrorCode::kUsage,
              fmt::format("--machines {}: that is {} ranks, but --world is {}", sizes, first,
                          process.world_size),
              {.subject = "--machines", .hint = "give sizes that add up to --world"});
}

}  // namespace coupler::matrix
