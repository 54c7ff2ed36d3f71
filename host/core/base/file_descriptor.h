// UniqueFd: owns one file descriptor. As thread-safe as an int.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace coupler {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset(std::exchange(other.fd_, -1));
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Reading files that hold a secret. Plain functions, [any-thread].

// Reads at most `most` bytes of a regular file that this user (or root) owns and no one else may
// read. Throws Error(kConfig) "<name> <path> …" saying what is wrong; absent: the hint if the file
// cannot be opened or read.
std::string read_private_file(const std::string& name, const std::string& path, size_t most,
                              const std::string& absent);

// How many file descriptors unauthenticated connections may use. Plain function; may raise the
// process's soft limit, so call it before threads that depend on that limit start.

// How many descriptors connections that have not authenticated may use together: at
// most a quarter of the soft limit of open files, so that members and the process itself keep the
// rest. If members may need more than half of the soft limit, raises it as far as the hard limit
// allows (ranks inherit it), and logs a warning if that is not enough.
size_t descriptors_for_unauthenticated(size_t members, size_t unauthenticated);

}  // namespace coupler
