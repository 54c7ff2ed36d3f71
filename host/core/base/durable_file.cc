#include "base/durable_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace coupler {
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

void throw_io(const char* action, const std::string& path, int error) {
  throw Error(
      ErrorCode::kIo,
      fmt::format("cannot {} {}: {}", action, path, std::generic_category().message(error)),
      {.subject = path,
       .hint = error == ENOSPC || error == EDQUOT  ? "free some space, or write elsewhere"
               : error == EROFS || error == EACCES ? "write to a folder that this user may write to"
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
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::write(file_.get(), data + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", errno);
    done += static_cast<size_t>(count);
  }
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
  const std::string beside = path + ".new";
  ::unlink(beside.c_str());  // left by a process that was killed
  DurableFile file(beside);
  file.write(text.data(), text.size());
  file.finish();
  rename_durably(beside, path);
}

}  // namespace coupler
