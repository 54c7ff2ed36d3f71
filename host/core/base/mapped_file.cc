#include "base/mapped_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace coupler {
namespace {

struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

[[noreturn]] void fail_open(const std::string& path, const char* action, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", action, path.empty() ? "''" : path,
                          std::generic_category().message(error)),
              {.subject = path, .hint = {}});
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not block; it is rejected below.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail_open(path, "open", errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail_open(path, "examine", errno);
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorCode::kIo, fmt::format("{} is not a regular file", path),
                {.subject = path, .hint = {}});

  const auto size = static_cast<uint64_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    // Writable but private, so that an accidental write does not crash; without reservation, since
    // a file may be larger than memory.
    data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (data == MAP_FAILED) fail_open(path, "map", errno);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<uint8_t*>(data), size));
}

MappedFile::MappedFile(std::string path, uint8_t* data, uint64_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace coupler
