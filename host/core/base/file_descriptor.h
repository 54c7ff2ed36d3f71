// UniqueFd: owns one file descriptor. As thread-safe as an int. Plain functions that open, write
// and read files. [any-thread]
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>
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

// Writes all of the text to a blocking descriptor; false, and errno, if that fails.
bool write_fully(int fd, std::string_view text);

// A new file in the folder, to read and write, that no one else can open and that ends with its
// descriptor. None, and errno, if that fails.
UniqueFd open_unnamed(const std::string& folder);

// Whether reads and writes bypass the page cache from now on. Returns whether that changed
// anything: not every file system supports it, and some report that only on a transfer (EINVAL).
bool set_direct_io(int fd, bool direct);

// Reads at most `most` bytes of a regular file that this user (or root) owns and no one else may
// read: one that holds a secret. Throws Error(kConfig) "<name> <path> …" saying what is wrong;
// absent: the hint if the file cannot be opened or read.
std::string read_private_file(const std::string& name, const std::string& path, size_t most,
                              const std::string& absent);

}  // namespace coupler
