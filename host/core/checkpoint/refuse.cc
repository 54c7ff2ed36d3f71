#include "checkpoint/refuse.h"

#include <coupler/error.h>
#include <fmt/format.h>

namespace coupler::checkpoint {

void refuse_checkpoint(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
              {.subject = path, .hint = "use another checkpoint"});
}

}  // namespace coupler::checkpoint
