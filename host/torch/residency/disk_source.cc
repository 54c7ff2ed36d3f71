#include "residency/disk_source.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace coupler {

DiskSource::DiskSource(const std::string& folder, size_t most_behind)
    : file_(folder), most_behind_(std::max<size_t>(most_behind, 1)), thread_([this] { work(); }) {}

DiskSource::~DiskSource() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DiskSource::add(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t offset = file_.grow(bytes);
  places_.push_back({offset, static_cast<size_t>(BlockFile::aligned(bytes))});
}

DiskSource::Place DiskSource::place(size_t unit) const {
  const std::lock_guard lock(mutex_);
  return places_.at(unit);
}

void DiskSource::throw_if_failed() const {
  if (error_) std::rethrow_exception(error_);
}

void DiskSource::fill(size_t unit, void* memory) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    // The latest entry of the unit; a unit is never filled while it is being put away.
    const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                    [&](const Waiting& entry) { return entry.unit == unit; });
    if (found != waiting_.rend()) {
      std::memcpy(memory, found->memory.data(), places_.at(unit).bytes);
      return;
    }
  }
  const Place from = place(unit);
  file_.read(from.offset, memory, from.bytes);
}

void DiskSource::store(size_t unit, const void* memory) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() || error_; });
  throw_if_failed();
  const Place to = places_.at(unit);
  lock.unlock();
  file_.write(to.offset, memory, to.bytes);
}

void DiskSource::put_away(size_t unit, BufferPool::Buffer memory) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.size() < most_behind_ || error_; });
  if (error_) return;  // the next fill throws it
  waiting_.push_back({unit, std::move(memory)});
  lock.unlock();
  changed_.notify_all();
}

void DiskSource::work() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the program's threads
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

}  // namespace coupler
