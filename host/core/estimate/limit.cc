#include "estimate/limit.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "base/byte_size.h"

namespace coupler {

uint64_t memory_limit_of(const Config& config) {
  if (config.memory.limit.empty()) return 0;
  const auto source = config.sources.find("memory.limit");
  const std::string place = source == config.sources.end() ? "" : source->second.text;
  // A place on the command line or in the environment already names the key.
  const bool in_file = place.find(':') != std::string::npos;
  try {
    return parse_byte_size(config.memory.limit,
                           in_file ? place + ": memory.limit" : "memory.limit");
  } catch (const Error& error) {
    throw Error(ErrorCode::kConfig, error.what(), {.subject = "memory.limit"});
  }
}

}  // namespace coupler
