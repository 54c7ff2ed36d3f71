#include "base/private_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/unique_fd.h"

namespace coupler {

std::string read_private_file(const std::string& name, const std::string& path, size_t most,
                              const std::string& absent) {
  const auto fail = [&](const std::string& what, const std::string& hint) {
    throw Error(ErrorCode::kConfig, fmt::format("{} {} {}", name, path, what),
                {.subject = path, .hint = hint});
  };
  // Without O_NONBLOCK, opening a FIFO would block.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) {
    fail(fmt::format("cannot be opened: {}", last_failure()), absent);
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    fail("is not a regular file", absent);
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    fail(fmt::format("belongs to another user (uid {})", status.st_uid),
         "start launcher and ranks as the same user");
  }
  if ((status.st_mode & 077) != 0) {
    fail(fmt::format("can be read by others (mode {:04o}): it holds the job's secret",
                     status.st_mode & 07777),
         fmt::format("chmod 600 {}", path));
  }
  std::string text(most, '\0');
  const ssize_t size = ::pread(fd.get(), text.data(), text.size(), 0);
  if (size < 0) {
    fail(fmt::format("cannot be read: {}", last_failure()), absent);
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace coupler
