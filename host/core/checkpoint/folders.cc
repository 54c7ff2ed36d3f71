#include "checkpoint/folders.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/durable_file.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

void make(const fs::path& path) {
  const fs::path above = path.parent_path();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      // A mount point existed before, so its name is already durable.
      struct stat status_above {};
      if (above == path || ::stat(above.c_str(), &status_above) != 0 ||
          status_above.st_dev != status.st_dev)
        return;
      make(above);
      // A process that was killed before this sync may have created it. If we cannot write to the
      // parent, nothing of ours was created there.
      if (::access(above.c_str(), R_OK | W_OK) == 0) sync_folder(above.string());
      return;
    }
    throw Error(ErrorCode::kIo, fmt::format("{} is a file, not a folder", path.string()),
                {.subject = path.string(),
                 .hint = "name another folder for checkpoints, or move the file"});
  }
  if (errno == ENOENT && ::lstat(path.c_str(), &status) == 0) {
    if (!S_ISLNK(status.st_mode)) return make(path);  // another process has just created it
    throw Error(ErrorCode::kIo, fmt::format("{} is a dangling link", path.string()),
                {.subject = path.string(), .hint = "create its target, or remove it"});
  }
  if (errno != ENOENT && errno != ENOTDIR) throw_io("open", path.string(), errno);
  if (above != path) make(above);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) throw_io("create", path.string(), errno);
  sync_folder(above.string());
}

}  // namespace

std::string make_folders(const std::string& path) {
  fs::path absolute = fs::absolute(path.empty() ? "." : path).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a '/' at the end
  make(absolute);
  std::error_code error;
  const fs::path real = fs::canonical(absolute, error);
  if (error) throw_io("open", absolute.string(), error.value());
  return real.string();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  if (error) throw_io("read", folder, error.value());
  return names;
}

void remove_folder(const std::string& path) {
  std::error_code error;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    throw_io("remove", path, errno);
  }
  // The manifest first, so that an interrupted removal leaves no checkpoint.
  if (S_ISDIR(status.st_mode) && ::unlink((path + "/" + kManifestName).c_str()) != 0 &&
      errno != ENOENT)
    throw_io("remove", path, errno);
  fs::remove_all(path, error);
  if (error) throw_io("remove", path, error.value());
}

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
                fmt::format("{} is in use by {}", folder, for_message(holder(file_.get()))),
                {.subject = folder, .hint = "give each job its own folder, or stop the other job"});
  }
  // This line serves the message above only. If it cannot be written (a full disk, say), the lock
  // is still held, and saving reports the problem.
  const std::string line = own_line();
  const ssize_t written = ::pwrite(file_.get(), line.data(), line.size(), 0);
  if (written > 0 && ::ftruncate(file_.get(), written) != 0) return;
}

}  // namespace coupler::checkpoint
