#include "base/durable_file.h"

#define XXH_STATIC_LINKING_ONLY  // NOLINT: the header's switch for the state's definition
#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/process.h"
#include "base/sha256.h"

// On x86 the library selects the widest vectors that the processor has; this header redirects the
// functions' names to it. Elsewhere the compiler's code is used.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace coupler {

struct ChunkSums::State {
  XXH3_state_t hash;
};

uint64_t chunk_sum(const void* data, size_t size) { return XXH3_64bits(data, size); }

ChunkSums::ChunkSums() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }

ChunkSums::~ChunkSums() = default;

void ChunkSums::update(const void* data, size_t size) {
  const char* rest = static_cast<const char*>(data);
  while (size > 0) {
    const size_t part = std::min<uint64_t>(size, kCheckedChunk - in_chunk_);
    XXH3_64bits_update(&state_->hash, rest, part);
    in_chunk_ += part;
    rest += part;
    size -= part;
    if (in_chunk_ == kCheckedChunk) end_chunk();
  }
}

void ChunkSums::end_chunk() {
  sums_.push_back(XXH3_64bits_digest(&state_->hash));
  XXH3_64bits_reset(&state_->hash);
  in_chunk_ = 0;
}

std::vector<uint64_t> ChunkSums::finish() {
  if (in_chunk_ > 0) end_chunk();
  return std::exchange(sums_, {});
}

WriteBehind::WriteBehind(int file, uint64_t offset)
    : file_(file),
      memory_(static_cast<char*>(std::aligned_alloc(kAlignment, kBlocks * kBlock))),
      offset_(offset) {
  if (memory_ == nullptr) throw std::bad_alloc();
  thread_ = std::thread([this] { work(); });
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

char* WriteBehind::room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return filled_ - written_ < kBlocks || error_ != 0; });
  return error_ == 0 ? block(filled_) : nullptr;
}

void WriteBehind::write(size_t size) {
  {
    const std::lock_guard lock(mutex_);
    sizes_.at(filled_ % kBlocks) = size;
    ++filled_;
  }
  changed_.notify_all();
}

int WriteBehind::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return filled_ == written_ || error_ != 0; });
  return error_;
}

void WriteBehind::work() {
  block_signals();
  set_direct(true);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return filled_ > written_ || over_; });
    if (over_) return;
    const char* const data = block(written_);
    const size_t size = sizes_.at(written_ % kBlocks);
    lock.unlock();
    const int error = write_block(data, size);
    lock.lock();
    error_ = error;
    ++written_;
    changed_.notify_all();
    if (error != 0) return;
  }
}

// The file starts without it.
void WriteBehind::set_direct(bool direct) { direct_ = set_direct_io(file_, direct) && direct; }

int WriteBehind::write_block(const char* data, size_t size) {
  for (size_t done = 0; done < size;) {
    // Only whole disk blocks can bypass the cache: not the end of the file, nor the rest of a short
    // write.
    const size_t units = (size - done) / kAlignment * kAlignment;
    if (direct_ && (units == 0 || done % kAlignment != 0)) set_direct(false);
    const ssize_t count = ::pwrite(file_, data + done, direct_ ? units : size - done,
                                   static_cast<off_t>(offset_ + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && direct_) {
      set_direct(false);
      continue;
    }
    if (count < 0) return errno;
    done += static_cast<size_t>(count);
  }
  // Only a hint: on file systems that do not support it, fsync does everything.
  if (!direct_) {
    ::sync_file_range(file_, static_cast<off64_t>(offset_), static_cast<off64_t>(size),
                      SYNC_FILE_RANGE_WRITE);
  }
  offset_ += size;
  return 0;
}

namespace {

// A file's first bytes, thus all of a small file, are written immediately.
constexpr uint64_t kWrittenDirectly = uint64_t{8} << 20;
static_assert(kWrittenDirectly % WriteBehind::kAlignment == 0);

// Retries after a signal: on some network file systems signals interrupt any call. Never for close,
// which releases the descriptor in any case.
template <typename Call>
int restarted(const Call& call) {
  int result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void throw_io(const char* action, const std::string& path, int error, const char* if_denied) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", action, path, std::generic_category().message(error)),
              {.subject = path,
               .hint = error == ENOSPC || error == EDQUOT  ? "free some space, or write elsewhere"
                       : error == EROFS || error == EACCES ? if_denied
                                                           : ""});
}

DurableFile::DurableFile(std::string path)
    : path_(std::move(path)), file_(restarted([this] {
        return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      })) {
  if (!file_) fail("create", errno);
}

DurableFile::~DurableFile() {
  behind_.reset();
  if (file_ && !finished_) ::unlink(path_.c_str());
}

void DurableFile::fail(const char* action, int error) const { throw_io(action, path_, error); }

// The faster hash first: it is the one that waits for memory.
void DurableFile::hash(const char* data, size_t size) {
  sums_.update(data, size);
  digest_.update({data, size});
  bytes_ += size;
}

void DurableFile::write_now(const char* data, size_t size) {
  hash(data, size);
  if (!write_fully(file_.get(), {data, size})) fail("write", errno);
}

void DurableFile::write_behind(const char* data, size_t size) {
  if (behind_ == nullptr) {
    // Only a hint: on file systems that do not support it, fsync does everything.
    ::sync_file_range(file_.get(), 0, static_cast<off64_t>(bytes_), SYNC_FILE_RANGE_WRITE);
    behind_ = std::make_unique<WriteBehind>(file_.get(), bytes_);
  }
  if (room_ == nullptr) room_ = behind_->room();
  if (room_ == nullptr) fail("write", behind_->finish());
  std::memcpy(room_ + filled_, data, size);
  hash(room_ + filled_, size);
  filled_ += size;
  if (filled_ < WriteBehind::kBlock) return;
  behind_->write(filled_);
  filled_ = 0;
  room_ = nullptr;
}

void DurableFile::write(const void* data, size_t size) {
  const char* rest = static_cast<const char*>(data);
  while (size > 0) {
    const bool now = bytes_ < kWrittenDirectly;
    const uint64_t fits = now ? kWrittenDirectly - bytes_ : WriteBehind::kBlock - filled_;
    const size_t piece = std::min<uint64_t>({size, kCachedPiece, fits});
    now ? write_now(rest, piece) : write_behind(rest, piece);
    rest += piece;
    size -= piece;
  }
}

WrittenFile DurableFile::finish() {
  if (behind_ != nullptr) {
    if (filled_ > 0) behind_->write(filled_);
    if (const int error = behind_->finish(); error != 0) fail("write", error);
    behind_.reset();
  }
  if (restarted([this] { return ::fsync(file_.get()); }) != 0) fail("write", errno);
  // Network file systems report here what they could not write.
  if (::close(file_.release()) != 0 && errno != EINTR) {
    const int error = errno;
    ::unlink(path_.c_str());
    fail("close", error);
  }
  finished_ = true;
  return {bytes_, digest_.finish(), sums_.finish()};
}

void sync_folder(const std::string& folder) {
  const UniqueFd descriptor(
      restarted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!descriptor || restarted([&] { return ::fsync(descriptor.get()); }) != 0)
    throw_io("sync", folder, errno);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (restarted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0)
    throw_io("rename to", to, errno);
  sync_folder(folder_of(to));
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());  // left by a process that was killed
  DurableFile file(temporary);
  file.write(text.data(), text.size());
  file.finish();
  rename_durably(temporary, path);
}

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
  if (!file) throw_io("open", path, errno, "give this user permission to read it");
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

}  // namespace coupler
