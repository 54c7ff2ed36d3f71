#include "hub/file_lock.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "hub/settings.h"

namespace coupler::hub {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr auto kBeat = std::chrono::seconds(1);
constexpr size_t kLongestText = 8192;

UniqueFd open_lock(const std::string& path) {
  // Group-writable like huggingface_hub's, for users who share a cache.
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
  if (!file) {
    throw_io("create", path, errno, kOwnCache);
  }
  return file;
}

// Whether the path still is this file: filelock removes its files.
bool is_current(const std::string& path, int file) {
  struct stat here {
  }, opened{};
  return ::stat(path.c_str(), &here) == 0 && ::fstat(file, &opened) == 0 &&
         here.st_ino == opened.st_ino && here.st_dev == opened.st_dev;
}

std::pair<time_t, long> changed_at(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return {};
  return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

}  // namespace

FileLock::FileLock(const std::string& path, const std::string& what,
                   std::chrono::milliseconds patience)
    : path_(path), file_(open_lock(path)), beaten_(Clock::now()) {
  auto seen = changed_at(file_.get());
  auto seen_at = Clock::now();
  for (;;) {
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_current(path, file_.get())) return;
      file_ = open_lock(path);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;  // no locks here
    if (!std::exchange(waited_, true)) {
      log(LogLevel::kInfo, "hub", fmt::format("waiting for another process, which {}", what));
    }
    const auto now = changed_at(file_.get());
    if (now != seen) {
      seen = now;
      seen_at = Clock::now();
    }
    if (Clock::now() - seen_at > patience) {
      throw Error(
          ErrorCode::kTimeout,
          fmt::format("another process {}, but has given no sign of life for {} s; it holds "
                      "{}",
                      what, std::chrono::duration<double>(patience).count(), path),
          {.subject = path, .hint = fmt::format("end that process (`fuser {}`)", path)});
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void FileLock::beat() {
  const auto now = Clock::now();
  if (now - beaten_ < kBeat) return;
  beaten_ = now;
  // Without it, waiting processes give up in the end; this one can go on.
  if (::futimens(file_.get(), nullptr) != 0) return;
}

std::string FileLock::left() const {
  std::array<char, kLongestText> text{};
  const ssize_t size = ::pread(file_.get(), text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : "";
}

void FileLock::leave(const std::string& text) {
  // A text that cannot be written is one that others find out for themselves.
  if (::ftruncate(file_.get(), 0) != 0 || text.empty()) return;
  const size_t size = std::min(text.size(), kLongestText);
  if (::pwrite(file_.get(), text.data(), size, 0) < 0) return;
}

}  // namespace coupler::hub
