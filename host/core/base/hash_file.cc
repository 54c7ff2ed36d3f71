#include "base/hash_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/secret.h"
#include "base/unique_fd.h"

namespace coupler::checkpoint {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
// A larger file is dropped from the page cache while it is read, as it would evict what training
// needs. A smaller one stays, since it is loaded next.
constexpr uint64_t kStays = uint64_t{256} << 20;
constexpr uint64_t kDrop = uint64_t{32} << 20;

}  // namespace

WrittenFile hash_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe with no writer must not wait.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_io("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_io("examine", path, errno);
  const bool drops = static_cast<uint64_t>(status.st_size) > kStays;
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);

  Digest digest;
  std::vector<char> buffer(kChunk);
  uint64_t bytes = 0;
  uint64_t dropped = 0;
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io("read", path, errno);
    if (count == 0) break;
    digest.update({buffer.data(), static_cast<size_t>(count)});
    bytes += static_cast<uint64_t>(count);
    if (drops && bytes - dropped >= kDrop) {
      ::posix_fadvise(file.get(), static_cast<off_t>(dropped), static_cast<off_t>(bytes - dropped),
                      POSIX_FADV_DONTNEED);
      dropped = bytes;
    }
  }
  return {bytes, digest.finish()};
}

}  // namespace coupler::checkpoint
