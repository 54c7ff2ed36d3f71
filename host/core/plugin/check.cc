#include "plugin/check.h"

#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "plugin/elf.h"
#include "plugin/refuse.h"

namespace coupler {
namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Whether the group of a file is its owner's own: the same name, and no other members. Systems that
// create such a group for every user make files writable by it.
bool is_private_group(gid_t group, uid_t owner) {
  std::vector<char> user_text(16384), group_text(65536);
  passwd user_entry = {};
  struct group entry = {};
  passwd* user = nullptr;
  struct group* found = nullptr;
  if (getpwuid_r(owner, &user_entry, user_text.data(), user_text.size(), &user) != 0 || !user ||
      getgrgid_r(group, &entry, group_text.data(), group_text.size(), &found) != 0 || !found) {
    return false;
  }
  if (user->pw_gid != group || std::strcmp(user->pw_name, found->gr_name) != 0) return false;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (std::strcmp(*member, user->pw_name) != 0) return false;
  }
  return true;
}

void check_owner(const std::string& path, const std::string& what, const struct stat& status,
                 const std::string& of) {
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    refuse_plugin(path,
                  fmt::format("is refused: {} belongs to user {}, neither root nor this user ({})",
                              what, status.st_uid, geteuid()),
                  fmt::format("if you trust it, take ownership or use your own copy: chown {} {}",
                              geteuid(), of));
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    refuse_plugin(path,
                  fmt::format("is refused: {} is writable by everyone (mode {:04o})", what,
                              status.st_mode & 07777u),
                  fmt::format("chmod o-w {}", of));
  }
  if ((status.st_mode & S_IWGRP) != 0 && !is_private_group(status.st_gid, status.st_uid)) {
    refuse_plugin(path,
                  fmt::format("is refused: {} is writable by group {} (mode {:04o})", what,
                              status.st_gid, status.st_mode & 07777u),
                  fmt::format("chmod g-w {}", of));
  }
}

void check_folders(const std::string& path, const std::string& real) {
  std::filesystem::path folder = std::filesystem::path(real).parent_path();
  for (bool own = true;; own = false) {
    struct stat status = {};
    if (stat(folder.c_str(), &status) != 0) {
      refuse_plugin(path,
                    fmt::format("is refused: its folder {} cannot be examined: {}", folder.string(),
                                std::strerror(errno)),
                    "make the folder readable to this user");
    }
    if (own) {
      check_owner(path, "its folder " + folder.string(), status, folder.string());
    } else if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
      refuse_plugin(
          path,
          fmt::format("is refused: the folder {} above it is writable by everyone (mode {:04o})",
                      folder.string(), status.st_mode & 07777u),
          fmt::format("chmod o-w {}", folder.string()));
    }
    if (folder == folder.parent_path()) return;
    folder = folder.parent_path();
  }
}

}  // namespace

std::string check_plugin_file(const std::string& path, const std::string& sha256) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr),
                                                             &std::free);
  if (!resolved) {
    refuse_plugin(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
                  "check backend.use; a string with a slash is the path of a plugin's file");
  }
  std::string real = resolved.get();
  const File file(open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status = {};
  if (file.fd() < 0 || fstat(file.fd(), &status) != 0) {
    refuse_plugin(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
                  "make the file readable to this user");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_plugin(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
                  "name the plugin's library file");
  }
  check_owner(path, "the file", status, real);
  check_folders(path, real);
  const ElfReport elf =
      inspect_elf(file.fd(), static_cast<uint64_t>(status.st_size), DB_ENTRY_SYMBOL);
  if (!elf.problem.empty()) refuse_plugin(path, elf.problem, elf.hint);
  if (!elf.has_entry) {
    refuse_plugin(path,
                  "is a shared library but not a backend: it does not export " DB_ENTRY_SYMBOL,
                  "mark the entry function with DB_EXPORT; in C++ it must be extern \"C\"");
  }
  if (!sha256.empty()) check_sha256(path, file.fd(), sha256);
  return real;
}

}  // namespace coupler
