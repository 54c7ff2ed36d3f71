#include "cli/process/become.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/text/words.h"

namespace coupler::cli {

void become(const std::vector<std::string>& command, const std::string& hint) {
  std::fflush(stdout);
  ::execv(command[0].c_str(), argv_of(command).data());
  throw Error(ErrorCode::kIo, fmt::format("cannot run {}: {}", command[0], std::strerror(errno)),
              {.subject = command[0], .hint = hint});
}

}  // namespace coupler::cli
