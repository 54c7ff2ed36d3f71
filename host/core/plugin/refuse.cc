#include "plugin/refuse.h"

#include <coupler/error.h>
#include <fmt/format.h>

namespace coupler {

void refuse_plugin(const std::string& path, const std::string& problem, const std::string& hint) {
  throw Error(ErrorCode::kPlugin, fmt::format("plugin {} {}", path, problem),
              {.subject = path, .hint = hint});
}

}  // namespace coupler
