#include "checkpoint/make_folders.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/durable_file.h"
#include "checkpoint/manifest.h"

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

}  // namespace coupler::checkpoint
