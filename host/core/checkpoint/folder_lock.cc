#include "checkpoint/folder_lock.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/durable_file.h"
#include "base/file_text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {
namespace {

// "process 4711 on host node3, since 2026-11-22T15:04:05Z"
std::string holder(int file) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  // The holder may not have written its line yet.
  if (size <= 0) return "another process";
  const std::string_view line(text.data(), static_cast<size_t>(size));
  return std::string(line.substr(0, line.find('\n')));
}

std::string own_line() {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on host {}, since {}\n", ::getpid(), host.data(), now_utc());
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/" + kLockName;
  do {
    file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  } while (!file_ && errno == EINTR);
  if (!file_) throw_io("open", path, errno);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  int result = 0;
  do {
    result = ::fcntl(file_.get(), F_OFD_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EAGAIN && errno != EACCES) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot lock {}: {}", path, std::generic_category().message(errno)),
                {.subject = path,
                 .hint = "the file system must support file locks, so that no two jobs write here: "
                         "mount it with locks (Lustre: -o flock), or write elsewhere"});
  }
  if (result != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is in use by {}", folder, shown(holder(file_.get()))),
                {.subject = folder, .hint = "give each job its own folder, or stop the other job"});
  }
  // This line serves the message above only. If it cannot be written (a full disk, say), the lock
  // is still held, and saving reports the problem.
  const std::string line = own_line();
  const ssize_t written = ::pwrite(file_.get(), line.data(), line.size(), 0);
  if (written > 0 && ::ftruncate(file_.get(), written) != 0) return;
}

}  // namespace coupler::checkpoint
