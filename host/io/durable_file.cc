#include "io/durable_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace coupler {
namespace {

// Hashed, written and handed to the disk at once: in the cache still when it is written.
constexpr size_t kChunk = size_t{1} << 20;
// How much the disk is told of at once.
constexpr uint64_t kStart = uint64_t{8} << 20;

// Again where a signal came first: some network file systems let one interrupt any call. Never for
// close, which gives the descriptor back all the same.
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
  if (file_ && !finished_) ::unlink(path_.c_str());
}

void DurableFile::fail(const char* action, int error) const { throw_io(action, path_, error); }

void DurableFile::write(const void* data, size_t size) {
  const char* rest = static_cast<const char*>(data);
  while (size > 0) {
    const size_t chunk = std::min(size, kChunk);
    digest_.update({rest, chunk});
    sums_.update(rest, chunk);
    for (size_t done = 0; done < chunk;) {
      const ssize_t count = ::write(file_.get(), rest + done, chunk - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("write", errno);
      done += static_cast<size_t>(count);
    }
    bytes_ += chunk;
    rest += chunk;
    size -= chunk;
    if (bytes_ - started_ >= kStart) {
      // A hint only: where a file system does not know it, fsync does all.
      ::sync_file_range(file_.get(), static_cast<off64_t>(started_),
                        static_cast<off64_t>(bytes_ - started_), SYNC_FILE_RANGE_WRITE);
      started_ = bytes_;
    }
  }
}

WrittenFile DurableFile::finish() {
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
  ::unlink(beside.c_str());  // of a process that was killed
  DurableFile file(beside);
  file.write(text.data(), text.size());
  file.finish();
  rename_durably(beside, path);
}

}  // namespace coupler
