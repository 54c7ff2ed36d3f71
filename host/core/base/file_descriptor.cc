#include "base/file_descriptor.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

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

namespace {

// For everything else the process opens: pipes and pidfds of its children, libraries, logs.
constexpr rlim_t kReserve = 64;

}  // namespace

size_t descriptors_for_unauthenticated(size_t members, size_t unauthenticated) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return unauthenticated;
  }
  // A launcher holds up to three descriptors for each process it has started.
  const rlim_t for_members = kReserve + 4 * static_cast<rlim_t>(members);
  const rlim_t wanted = for_members + unauthenticated;
  // Small jobs keep the limit: programs that use select() need low descriptor numbers.
  if (for_members > limit.rlim_cur / 2 && wanted > limit.rlim_cur &&
      limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
  }
  if (for_members > limit.rlim_cur) {
    log(LogLevel::kWarning, "store",
        fmt::format(
            "{} processes may need {} open files, but only {} are allowed: raise `ulimit -Hn`",
            members, for_members, limit.rlim_cur));
  }
  // At most a quarter: the rest belongs to the job, whatever unauthenticated connections do.
  const size_t quarter = std::max<size_t>(8, static_cast<size_t>(limit.rlim_cur / 4));
  return std::min(unauthenticated + members, quarter);
}

}  // namespace coupler
