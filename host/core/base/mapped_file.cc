#include "base/mapped_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"

namespace coupler {
namespace {

[[noreturn]] void fail_open(const std::string& path, const char* action, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", action, path.empty() ? "''" : path,
                          std::generic_category().message(error)),
              {.subject = path, .hint = {}});
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not block; it is rejected below.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail_open(path, "open", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_open(path, "examine", errno);
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorCode::kIo, fmt::format("{} is not a regular file", path),
                {.subject = path, .hint = {}});

  const auto size = static_cast<uint64_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    // Writable but private, so that an accidental write does not crash; without reservation, since
    // a file may be larger than memory.
    data =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
    if (data == MAP_FAILED) fail_open(path, "map", errno);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<uint8_t*>(data), size));
}

MappedFile::MappedFile(std::string path, uint8_t* data, uint64_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

namespace {

constexpr size_t kLargestPiece = size_t{2} << 20;

constexpr const char* kHint =
    "write a new file and rename it, as save_model does; never change a file in place that "
    "programs "
    "have loaded";

// Read by the signal handler: a slot's file is set last and cleared first.
struct Slot {
  mutable std::atomic<const MappedFile*> file{nullptr};
};
std::array<Slot, 4096> slots;
struct sigaction before;

bool append(std::array<char, 1024>& text, size_t& size, std::string_view part) {
  if (size + part.size() > text.size()) return false;
  std::memcpy(text.data() + size, part.data(), part.size());
  size += part.size();
  return true;
}

// Async-signal-safe: it allocates nothing, and the path belongs to the mapping.
void on_bus_error(int, siginfo_t* info, void*) {
  const auto* const address = static_cast<const uint8_t*>(info->si_addr);
  for (const Slot& slot : slots) {
    const MappedFile* const file = slot.file.load();
    if (file == nullptr || address < file->data() || address >= file->data() + file->size()) {
      continue;
    }
    std::array<char, 1024> text;
    size_t size = 0;
    append(text, size, file->path());
    append(text, size, " was truncated, or its disk failed, while it was in use\n  hint: ");
    append(text, size, kHint);
    report_error({text.data(), size});
    ::_exit(1);
  }
  // Not ours: restore the previous handler, which gets the signal when the instruction runs again.
  ::sigaction(SIGBUS, &before, nullptr);
}

void install() {
  static const bool kDone = [] {
    struct sigaction action {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  static_cast<void>(kDone);
}

// The whole pages around a range.
struct Pages {
  uint8_t* begin;
  size_t bytes;
};
Pages pages_around(const MappedFile& file, size_t begin, size_t bytes) {
  static const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = begin / kPage * kPage;
  return {file.data() + first, begin + bytes - first};
}

[[noreturn]] void fail_read(const MappedFile& file, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", file.path(), problem),
              {.subject = file.path(), .hint = kHint});
}

}  // namespace

std::shared_ptr<const void> guard_mapping(const std::shared_ptr<const MappedFile>& file) {
  static std::mutex mutex;
  static auto* const kGuarded = new std::map<const MappedFile*, std::weak_ptr<const void>>;
  install();
  const std::lock_guard lock(mutex);
  if (auto guard = (*kGuarded)[file.get()].lock()) return guard;
  for (Slot& slot : slots) {
    const MappedFile* none = nullptr;
    if (!slot.file.compare_exchange_strong(none, file.get())) continue;
    std::shared_ptr<const void> guard(&slot, [file](const void* taken) {
      const std::lock_guard lock_again(mutex);
      static_cast<const Slot*>(taken)->file.store(nullptr);
      kGuarded->erase(file.get());
    });
    (*kGuarded)[file.get()] = guard;
    return guard;
  }
  return file;
}

void populate(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const Pages pages = pages_around(file, begin, bytes);
  while (::madvise(pages.begin, pages.bytes, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EFAULT) {
      fail_read(file,
                fmt::format("it is shorter than the {} bytes it had when it was opened, or its "
                            "disk cannot be read",
                            file.size()));
    }
    // Kernels before 5.14: pages are read on use.
    if (errno == EINVAL) return;
    fail_read(file, fmt::format("it cannot be read: {}", std::generic_category().message(errno)));
  }
}

void advise_in(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const Pages pages = pages_around(file, begin, bytes);
  ::madvise(pages.begin, pages.bytes, MADV_WILLNEED);  // only advice: without it reads are slower
}

// The kernel maps file data in the large pieces in which it was read, up to the size of a huge
// page, so that a range also brings its surroundings into memory.
void drop(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const size_t first = begin > kLargestPiece ? begin - kLargestPiece : 0;
  const size_t end = std::min<size_t>(file.size(), begin + bytes + kLargestPiece);
  const Pages pages = pages_around(file, first, end - first);
  ::madvise(pages.begin, pages.bytes, MADV_DONTNEED);
}

namespace {

constexpr uint64_t kAhead = 4;  // chunks that are being read before they are needed

[[noreturn]] void refuse_copy(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{} {}", path, problem),
              {.subject = path, .hint = "use another copy or checkpoint"});
}

}  // namespace

CheckedFile::CheckedFile(std::string path, uint64_t size, std::vector<uint64_t> sums)
    : path_(std::move(path)), size_(size), sums_(std::move(sums)) {
  file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) {
    refuse_copy(path_, fmt::format("cannot be opened: {}", std::generic_category().message(errno)));
  }
  if (!S_ISREG(status.st_mode)) refuse_copy(path_, "is not a regular file");
  if (static_cast<uint64_t>(status.st_size) != size_) {
    refuse_copy(path_, fmt::format("has {} bytes, but {} were written", status.st_size, size_));
  }
  if (sums_.size() != (size_ + kCheckedChunk - 1) / kCheckedChunk) {
    refuse_copy(path_, fmt::format("has the wrong number of checksums: {} for {} bytes",
                                   sums_.size(), size_));
  }
}

void CheckedFile::fail(uint64_t chunk, const std::string& why) const {
  const uint64_t begin = chunk * kCheckedChunk;
  refuse_copy(path_, fmt::format("is damaged between bytes {} and {}: {}", begin,
                                 std::min(size_, begin + kCheckedChunk), why));
}

// The system's readahead is too small to keep a disk busy. Cached pages cause no reads.
void CheckedFile::read_ahead(uint64_t chunk) {
  if (ahead_ < chunk || ahead_ > chunk + kAhead) ahead_ = chunk;
  for (; ahead_ < std::min<uint64_t>(chunk + kAhead, sums_.size()); ++ahead_) {
    char byte = 0;
    const iovec probe{.iov_base = &byte, .iov_len = 1};
    const auto at = static_cast<off_t>(ahead_ * kCheckedChunk);
    if (::preadv2(file_.get(), &probe, 1, at, RWF_NOWAIT) == 1) continue;
    ::posix_fadvise(file_.get(), at, kCheckedChunk, POSIX_FADV_WILLNEED);
  }
}

void CheckedFile::read_chunk(uint64_t chunk, char* into) {
  read_ahead(chunk);
  const uint64_t begin = chunk * kCheckedChunk;
  const size_t size = std::min(kCheckedChunk, size_ - begin);
  ChunkSums sum;
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::pread(file_.get(), into + done, std::min(kCachedPiece, size - done),
                                  static_cast<off_t>(begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(chunk, std::generic_category().message(errno));
    if (count == 0) fail(chunk, "the file ends there");
    sum.update(into + done, static_cast<size_t>(count));
    done += static_cast<size_t>(count);
  }
  if (sum.finish().front() != sums_[chunk]) fail(chunk, "its checksum differs");
}

void CheckedFile::read(uint64_t offset, void* into, size_t size) {
  if (offset > size_ || size > size_ - offset) {
    refuse_copy(
        path_, fmt::format("has {} bytes, but {} at offset {} are requested", size_, size, offset));
  }
  char* to = static_cast<char*>(into);
  while (size > 0) {
    const uint64_t chunk = offset / kCheckedChunk;
    const uint64_t begin = chunk * kCheckedChunk;
    const uint64_t in_chunk = std::min(kCheckedChunk, size_ - begin);
    const size_t part = std::min<uint64_t>(size, begin + in_chunk - offset);
    if (part == in_chunk) {
      read_chunk(chunk, to);
    } else {
      if (edge_chunk_ != chunk) {
        edge_.resize(in_chunk);
        edge_chunk_ = ~uint64_t{0};
        read_chunk(chunk, edge_.data());
        edge_chunk_ = chunk;
      }
      std::memcpy(to, edge_.data() + (offset - begin), part);
    }
    offset += part;
    to += part;
    size -= part;
  }
}

}  // namespace coupler
