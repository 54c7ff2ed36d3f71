#include "base/checked_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/chunk_sums.h"

namespace coupler {
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
