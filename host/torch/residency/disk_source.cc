#include "residency/disk_source.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/process.h"
#include "base/units.h"

namespace coupler::residency {
namespace {

// Large enough to keep a disk busy, small enough for an error to locate the failure.
constexpr size_t kAtOnce = size_t{8} << 20;

}  // namespace

BlockFile::BlockFile(std::string folder)
    : folder_(std::move(folder)), file_(open_unnamed(folder_)) {
  if (!file_) {
    const int error = errno;
    throw Error(ErrorCode::kIo,
                fmt::format("cannot offload to the folder {}: {}", folder_,
                            std::generic_category().message(error)),
                {.subject = folder_,
                 .hint = error == ENOENT    ? "create the folder, on a local disk"
                         : error == ENOTDIR ? "name a folder"
                                            : "name a folder that this user may write to"});
  }
  struct statfs system {};
  if (::fstatfs(file_.get(), &system) == 0 && system.f_type == TMPFS_MAGIC) {
    log(LogLevel::kWarning, "offload",
        fmt::format("{} is a tmpfs, which is memory: offloading to it frees no memory", folder_));
  }
  set_direct_io(file_.get(), true);
}

uint64_t BlockFile::grow(uint64_t bytes) {
  const uint64_t offset = size_;
  const uint64_t more = aligned(bytes);
  int error = 0;
  do {
    error = ::posix_fallocate(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(more));
  } while (error == EINTR);
  if (error != 0) {
    struct statfs system {};
    const bool known = ::fstatfs(file_.get(), &system) == 0;
    throw Error(
        ErrorCode::kIo,
        fmt::format("no room to offload {} to {}{}: {}", format_byte_size(more), folder_,
                    known ? fmt::format(" ({} free, {} used by this process)",
                                        format_byte_size(system.f_bavail *
                                                         static_cast<uint64_t>(system.f_bsize)),
                                        format_byte_size(size_))
                          : "",
                    std::generic_category().message(error)),
        {.subject = folder_,
         .hint = "free some space, name a folder on a larger disk, or use more ranks"});
  }
  size_ += more;
  return offset;
}

void BlockFile::fail(const char* action, uint64_t offset, int error) const {
  throw_io(fmt::format("{} byte {} of the offload file in", action, offset).c_str(), folder_,
           error);
}

template <class Transfer>
void BlockFile::transfer(const char* action, uint64_t offset, size_t size,
                         const Transfer& one) const {
  for (size_t done = 0; done < size;) {
    const ssize_t count =
        one(done, std::min(kAtOnce, size - done), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    // Some file systems reject O_DIRECT only here; a transfer that was cut short may also continue
    // at an unaligned offset.
    if (count < 0 && errno == EINVAL && set_direct_io(file_.get(), false)) continue;
    if (count <= 0) fail(action, offset + done, count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
  }
}

void BlockFile::read(uint64_t offset, void* into, size_t size) const {
  char* const to = static_cast<char*>(into);
  transfer("read", offset, size, [&](size_t done, size_t part, off_t at) {
    return ::pread(file_.get(), to + done, part, at);
  });
}

void BlockFile::write(uint64_t offset, const void* from, size_t size) const {
  const char* const data = static_cast<const char*>(from);
  transfer("write", offset, size, [&](size_t done, size_t part, off_t at) {
    return ::pwrite(file_.get(), data + done, part, at);
  });
}

DiskSource::DiskSource(const std::string& folder, size_t max_queued_writes)
    : file_(folder),
      max_queued_writes_(std::max<size_t>(max_queued_writes, 1)),
      thread_([this] { work(); }) {}

DiskSource::~DiskSource() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DiskSource::add(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t offset = file_.grow(bytes);
  places_.push_back({offset, static_cast<size_t>(BlockFile::aligned(bytes))});
}

void DiskSource::fill(size_t unit, void* memory) {
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  const Place from = places_.at(unit);
  // The latest entry of the unit; a unit is never filled while it is being put away.
  const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                  [&](const Waiting& entry) { return entry.unit == unit; });
  if (found != waiting_.rend()) {
    std::memcpy(memory, found->memory.data(), from.bytes);
    return;
  }
  lock.unlock();
  file_.read(from.offset, memory, from.bytes);
}

void DiskSource::store(size_t unit, const void* memory) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() || error_; });
  if (error_) std::rethrow_exception(error_);
  const Place to = places_.at(unit);
  lock.unlock();
  file_.write(to.offset, memory, to.bytes);
}

void DiskSource::write_back(size_t unit, BufferPool::Buffer memory) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.size() < max_queued_writes_ || error_; });
  if (error_) return;  // the next fill throws it
  waiting_.push_back({unit, std::move(memory)});
  lock.unlock();
  changed_.notify_all();
}

void DiskSource::work() {
  block_signals();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !waiting_.empty() || over_; });
    if (over_) return;
    const Waiting& next = waiting_.front();
    const Place to = places_.at(next.unit);
    const void* const data = next.memory.data();
    lock.unlock();
    std::exception_ptr error;
    try {
      file_.write(to.offset, data, to.bytes);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    waiting_.pop_front();
    error_ = error;
    changed_.notify_all();
    if (error_) return;
  }
}

}  // namespace coupler::residency
