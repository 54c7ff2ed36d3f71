#include "cli/process/pipe.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace coupler::cli {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot create a pipe: {}", std::generic_category().message(errno)),
                {.subject = "pipe", .hint = "check the limit on open files (ulimit -n)"});
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace coupler::cli
