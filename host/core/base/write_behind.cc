#include "base/write_behind.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <new>

namespace coupler {

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
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // leave signals to the program's threads
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

// Not every file system supports it, and some report that only on write.
void WriteBehind::set_direct(bool direct) {
  const int flags = ::fcntl(file_, F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  direct_ = flags >= 0 && ::fcntl(file_, F_SETFL, wanted) == 0 && direct;
}

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

}  // namespace coupler
