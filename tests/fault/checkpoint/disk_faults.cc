// A library for LD_PRELOAD that intercepts a program's disk calls: it counts the calls that concern
// one folder, logs them with their data, and kills the process or fails the call at the n-th call
// or at random. Configured by the environment; see operation_log.h for the log.
//
//   DISK_FAULTS_FOLDER  the folder; if unset, the library does nothing
//   DISK_FAULTS_AT      n, counted from 1
//   DISK_FAULTS_DO      kill_before, kill_after, short_write, the name of an error (ENOSPC), or, at
//                       random, "any": one of the errors, or a short write
//   DISK_FAULTS_CHANCE  how many of 1,000 calls are hit, chosen by DISK_FAULTS_SEED
//   DISK_FAULTS_DELAY   every fourth call first waits up to that many microseconds
//   DISK_FAULTS_SLOW    a send to a socket first waits between half and all of that many
//                       microseconds if its thread has a nice value of 10 or more, as saving
//                       threads do
//   DISK_FAULTS_HITS    a file elsewhere; "CALL FAULT" is appended to it for each random hit
//   DISK_FAULTS_LOG     a file elsewhere for the log
//   DISK_FAULTS_READS   not empty: calls that read at an offset or allocate space count too
//   DISK_FAULTS_REPORT  a descriptor; what is written to it is logged as a report
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

enum class Do { kNothing, kKillBefore, kKillAfter, kShortWrite, kFail };

struct Fault {
  const char* name;
  Do action;
  int error = 0;
};
constexpr std::array<Fault, 10> kFaults = {{{"ENOSPC", Do::kFail, ENOSPC},
                                            {"EIO", Do::kFail, EIO},
                                            {"EDQUOT", Do::kFail, EDQUOT},
                                            {"EROFS", Do::kFail, EROFS},
                                            {"EACCES", Do::kFail, EACCES},
                                            {"EMFILE", Do::kFail, EMFILE},
                                            {"EINTR", Do::kFail, EINTR},
                                            {"short_write", Do::kShortWrite},
                                            {"kill_before", Do::kKillBefore},
                                            {"kill_after", Do::kKillAfter}}};
constexpr uint64_t kWithoutKills = 8;  // the first ones

struct Settings {
  std::string folder;
  long at = 0;
  const Fault* fault = nullptr;  // null: none, or any
  uint64_t chance = 0, seed = 0, delay = 0, slow = 0;
  int hits = -1;
  int log = -1;
  int report = -1;
  bool reads = false;
};

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// -1 if path is empty.
int open_to_add(const char* path) {
  if (*path == '\0') return -1;
  return static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

Settings& settings() {
  static Settings* const result = [] {
    auto* made = new Settings;  // never freed: calls still arrive while the process exits
    made->folder = variable("DISK_FAULTS_FOLDER");
    made->at = std::atol(variable("DISK_FAULTS_AT"));
    const std::string action = variable("DISK_FAULTS_DO");
    for (const Fault& fault : kFaults) {
      if (action == fault.name) made->fault = &fault;
    }
    made->chance = std::strtoull(variable("DISK_FAULTS_CHANCE"), nullptr, 10);
    made->seed = std::strtoull(variable("DISK_FAULTS_SEED"), nullptr, 10);
    made->delay = std::strtoull(variable("DISK_FAULTS_DELAY"), nullptr, 10);
    made->slow = std::strtoull(variable("DISK_FAULTS_SLOW"), nullptr, 10);
    made->log = open_to_add(variable("DISK_FAULTS_LOG"));
    made->hits = open_to_add(variable("DISK_FAULTS_HITS"));
    made->reads = *variable("DISK_FAULTS_READS") != '\0';
    const char* report = variable("DISK_FAULTS_REPORT");
    if (*report != '\0') made->report = std::atoi(report);
    return made;
  }();
  return *result;
}

std::string path_of(int file) {
  char link[64];
  char path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = ::readlink(link, path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

std::string path_at(int folder, const char* name) {
  if (name == nullptr || *name == '/') return name == nullptr ? "" : name;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + name;
  char here[PATH_MAX];
  return ::getcwd(here, sizeof here) == nullptr ? name : std::string(here) + "/" + name;
}

bool concerns(const std::string& path) {
  const std::string& folder = settings().folder;
  return !folder.empty() && path.starts_with(folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

std::atomic<long> calls{0};
std::atomic<long> chances{0};

// The next random number of this process.
uint64_t draw() {
  uint64_t x = settings().seed + 0x9e3779b97f4a7c15 * static_cast<uint64_t>(++chances);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;  // splitmix64
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void delay() {
  if (settings().delay == 0 || draw() % 4 != 0) return;
  const int error = errno;
  ::usleep(static_cast<useconds_t>(draw() % settings().delay));
  errno = error;
}

// The fault for a counted call; null: none.
const Fault* fault_of(long number) {
  const Settings& chosen = settings();
  const bool at_random = chosen.chance > 0 && draw() % 1000 < chosen.chance;
  if (number != chosen.at && !at_random) return nullptr;
  if (chosen.fault != nullptr) return chosen.fault;
  return at_random ? &kFaults[draw() % kWithoutKills] : nullptr;
}

// One call. It is logged once it has happened; a call that is killed first is not logged.
struct Call {
  const char* name;
  std::string path;
  std::string other = {};  // a rename's new path
  const void* data = nullptr;
  long long offset = 0;
  bool is_ours = concerns(path);
  long number = is_ours ? ++calls : 0;

  const Fault* fault = is_ours ? fault_of(number) : nullptr;

  bool hits(Do action) const { return fault != nullptr && fault->action == action; }

  // Whether to make the call; sets errno if not.
  bool before() const {
    if (is_ours) delay();
    if (hits(Do::kKillBefore)) ::kill(::getpid(), SIGKILL);
    if (fault != nullptr) count();
    if (!hits(Do::kFail)) return true;
    errno = fault->error;
    return false;
  }
  void after(long long result) const {
    const int error = errno;
    if (is_ours) log(result);
    if (hits(Do::kKillAfter)) ::kill(::getpid(), SIGKILL);
    errno = error;
  }
  void count() const {
    if (settings().hits < 0 || (fault->action == Do::kShortWrite && data == nullptr)) return;
    char line[100];
    const int size = std::snprintf(line, sizeof line, "%s %s\n", name, fault->name);
    ::syscall(SYS_write, settings().hits, line, size);
  }
  void log(long long result) const {
    if (settings().log < 0) return;
    char line[2 * PATH_MAX + 100];
    const size_t bytes = data != nullptr && result > 0 ? static_cast<size_t>(result) : 0;
    const int size = std::snprintf(line, sizeof line, "%s\t%s\t%s\t%lld\t%lld\t%zu\n", name,
                                   path.c_str(), other.c_str(), offset, result, bytes);
    iovec parts[2] = {{line, static_cast<size_t>(size)}, {const_cast<void*>(data), bytes}};
    ::syscall(SYS_writev, settings().log, parts, 2);
  }
};

template <typename Make>
auto made(const Call& call, const Make& make) -> decltype(make()) {
  if (!call.before()) return -1;
  const auto result = make();
  call.after(static_cast<long long>(result));
  return result;
}

// Opening is logged as one of three calls: one that creates a file, one that truncates it, one that
// does neither.
int open_any(int folder, const char* name, int flags, mode_t mode) {
  const std::string path = path_at(folder, name);
  struct stat status {};
  const bool there = !concerns(path) || ::lstat(path.c_str(), &status) == 0;
  const char* kind = !there && (flags & O_CREAT) != 0 ? "create"
                     : (flags & O_TRUNC) != 0         ? "empty"
                                                      : "open";
  return made(Call{kind, path},
              [&] { return static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode)); });
}

mode_t mode_in(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

template <typename Write>
ssize_t write_any(int file, const void* data, size_t size, off64_t offset, const Write& write) {
  if (file == settings().report && file >= 0) {
    const ssize_t result = write(size);
    Call{"report", "", {}, data, 0, true, 0}.log(result);
    return result;
  }
  Call call{"write", path_of(file)};
  if (!call.is_ours) return write(size);
  call.data = data;
  call.offset = offset >= 0 ? offset : ::lseek64(file, 0, SEEK_CUR);
  const bool halves = call.hits(Do::kShortWrite) && size > 1;
  return made(call, [&] { return write(halves ? size / 2 : size); });
}

}  // namespace

// These make system calls directly, so that no call is counted twice.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_any(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_any(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_any(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_any(folder, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char* path, mode_t mode) {
  return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

ssize_t write(int file, const void* data, size_t size) {
  return write_any(file, data, size, -1,
                   [&](size_t part) { return ::syscall(SYS_write, file, data, part); });
}
ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  return write_any(file, data, size, offset,
                   [&](size_t part) { return ::syscall(SYS_pwrite64, file, data, part, offset); });
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  return write_any(file, data, size, offset,
                   [&](size_t part) { return ::syscall(SYS_pwrite64, file, data, part, offset); });
}
ssize_t pread(int file, void* into, size_t size, off_t offset) {
  const auto read = [&] { return ::syscall(SYS_pread64, file, into, size, offset); };
  if (!settings().reads) return read();
  Call call{"read", path_of(file)};
  call.offset = offset;
  return made(call, read);
}
ssize_t pread64(int file, void* into, size_t size, off64_t offset) {
  return pread(file, into, size, offset);
}
// Returns the error instead of setting errno.
int posix_fallocate(int file, off_t offset, off_t size) {
  const auto make_room = [&] {
    return static_cast<int>(::syscall(SYS_fallocate, file, 0, offset, size));
  };
  const auto result =
      settings().reads ? made(Call{"make room", path_of(file)}, make_room) : make_room();
  return result == 0 ? 0 : errno;
}
int posix_fallocate64(int file, off64_t offset, off64_t size) {
  return posix_fallocate(file, offset, size);
}
// Writes only the first part: callers must expect short writes.
ssize_t writev(int file, const iovec* parts, int count) {
  if (!concerns(path_of(file))) return ::syscall(SYS_writev, file, parts, count);
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len > 0) return write(file, parts[i].iov_base, parts[i].iov_len);
  }
  return 0;
}

ssize_t send(int socket, const void* data, size_t size, int flags) {
  const uint64_t slow = settings().slow;
  if (slow > 0 && ::getpriority(PRIO_PROCESS, 0) >= 10) {
    ::usleep(static_cast<useconds_t>(slow / 2 + draw() % (slow / 2 + 1)));
  }
  return ::syscall(SYS_sendto, socket, data, size, flags, nullptr, 0);
}

int fsync(int file) {
  return made(Call{"fsync", path_of(file)},
              [&] { return static_cast<int>(::syscall(SYS_fsync, file)); });
}
int fdatasync(int file) {
  return made(Call{"fsync", path_of(file)},
              [&] { return static_cast<int>(::syscall(SYS_fdatasync, file)); });
}
int sync_file_range(int file, off64_t offset, off64_t size, unsigned flags) {
  return made(Call{"hint", path_of(file)}, [&] {
    return static_cast<int>(::syscall(SYS_sync_file_range, file, offset, size, flags));
  });
}
int ftruncate(int file, off_t size) {
  Call call{"truncate", path_of(file)};
  call.offset = size;
  return made(call, [&] { return static_cast<int>(::syscall(SYS_ftruncate, file, size)); });
}
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }
// The descriptor is released even if closing fails.
int close(int file) {
  const Call call{"close", path_of(file)};
  const bool made_it = call.before();
  const int error = errno;
  const auto result = static_cast<int>(::syscall(SYS_close, file));
  if (made_it) {
    call.after(result);
    return result;
  }
  errno = error;
  return -1;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  Call call{"rename", path_at(from_folder, from)};
  call.other = path_at(to_folder, to);
  return made(call, [&] {
    return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return renameat2(from_folder, from, to_folder, to, 0);
}
int rename(const char* from, const char* to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char* path, int flags) {
  return made(Call{"remove", path_at(folder, path)},
              [&] { return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags)); });
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  struct stat status {};
  const bool folder = ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return unlinkat(AT_FDCWD, path, folder ? AT_REMOVEDIR : 0);
}

int mkdirat(int folder, const char* path, mode_t mode) {
  return made(Call{"mkdir", path_at(folder, path)},
              [&] { return static_cast<int>(::syscall(SYS_mkdirat, folder, path, mode)); });
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

}  // extern "C"
