#include "cli/process/folder_use.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

namespace coupler::cli {
namespace {

bool is_there(const UniqueFd& folder) {
  struct stat status {};
  return ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid() && status.st_nlink > 0;
}

}  // namespace

UniqueFd use_folder(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool ours = folder && ::flock(folder.get(), LOCK_SH | LOCK_NB) == 0 && is_there(folder);
  return ours ? std::move(folder) : UniqueFd();
}

bool is_last_user(const UniqueFd& use, WaitMode others) {
  const int how = LOCK_EX | (others == WaitMode::kWait ? 0 : LOCK_NB);
  int result = 0;
  do {
    result = ::flock(use.get(), how);
  } while (result != 0 && errno == EINTR);
  return result == 0 && is_there(use);
}

}  // namespace coupler::cli
