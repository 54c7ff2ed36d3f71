#include "base/file_descriptor.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace coupler {

bool write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

UniqueFd open_unnamed(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (file) return file;
  std::string path = folder + "/.coupler-XXXXXX";
  file.reset(::mkostemp(path.data(), O_CLOEXEC));
  if (file) ::unlink(path.c_str());
  return file;
}

bool set_direct_io(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  return flags >= 0 && wanted != flags && ::fcntl(fd, F_SETFL, wanted) == 0;
}

std::string read_private_file(const std::string& name, const std::string& path, size_t most,
                              const std::string& absent) {
  const auto fail = [&](const std::string& what, const std::string& hint) {
    throw Error(ErrorCode::kConfig, fmt::format("{} {} {}", name, path, what),
                {.subject = path, .hint = hint});
  };
  // Without O_NONBLOCK, opening a FIFO would block.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) {
    fail(fmt::format("cannot be opened: {}", errno_message()), absent);
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
    fail(fmt::format("cannot be read: {}", errno_message()), absent);
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace coupler
