// The disk calls that the model of a save distinguishes. In this program they replace the C
// library's: threads of a Conductor's ranks stop there and receive their faults; all other threads
// proceed. Nothing is synced to the disk, since the power does not fail here.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <optional>
#include <string_view>

#include "conductor.h"

namespace coupler::checkpoint {
namespace {

using model::Action;
using model::Fault;

thread_local int piece = -1;              // the piece that this rank has open
thread_local bool forcing_fails = false;  // the rank's next fsync fails

std::string_view name_in(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Whether to make the call; if not, errno is set.
bool may_go_on(std::optional<Action> action) {
  if (!action || !Conductor::is_rank()) return true;
  const Conductor::Turn turn = Conductor::stop(*action);
  forcing_fails = turn.event.fault == Fault::kFailsAfter;
  if (!turn.dead && turn.event.fault != Fault::kFails) return true;
  errno = EIO;
  return false;
}

int open_any(const char* path, int flags, mode_t mode) {
  std::optional<Action> action;
  if ((flags & O_CREAT) != 0 && name_in(path) == "manifest.json") action = Action::kList;
  if ((flags & O_CREAT) != 0 && name_in(path).starts_with("model-")) action = Action::kOpen;
  if (!may_go_on(action)) return -1;
  const auto file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (action == Action::kOpen) piece = file;
  return file;
}

int force(int file) {
  if (!Conductor::is_rank()) return static_cast<int>(::syscall(SYS_fsync, file));
  if (file == piece) {
    piece = -1;
    return may_go_on(Action::kWrite) ? 0 : -1;
  }
  if (!forcing_fails) return 0;
  forcing_fails = false;
  errno = EIO;
  return -1;
}

}  // namespace
}  // namespace coupler::checkpoint

extern "C" {

using coupler::checkpoint::may_go_on;
using coupler::checkpoint::model::Action;

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return coupler::checkpoint::open_any(path, flags, mode);
}

int fsync(int file) { return coupler::checkpoint::force(file); }

int mkdir(const char* path, mode_t mode) {
  const bool makes = std::string_view(path).ends_with(".partial");
  if (!may_go_on(makes ? std::optional(Action::kMake) : std::nullopt)) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int rename(const char* from, const char* to) {
  const bool hides = std::string_view(to).ends_with(".removed");
  if (!may_go_on(hides ? Action::kHide : Action::kName)) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

// When a folder is removed, its manifest goes first.
int unlink(const char* path) {
  const bool removes = std::string_view(path).ends_with(".removed/manifest.json");
  if (removes && !may_go_on(Action::kRemove)) return -1;
  // A killed process does not remove its unfinished files.
  if (coupler::checkpoint::Conductor::is_dead()) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

}  // extern "C"
