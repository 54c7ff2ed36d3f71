#include "data/workers.h"

#include <algorithm>
#include <utility>

namespace coupler::data {

Workers::Workers(size_t count, size_t ahead, Work work) : work_(std::move(work)), pieces_(ahead) {
  threads_.reserve(count);
  try {
    for (size_t i = 1; i <= count; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (...) {  // the system is out of threads
    stop();
    throw;
  }
}

Workers::~Workers() { stop(); }

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  more_to_do_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool Workers::await(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  Piece& piece = pieces_[ticket % pieces_.size()];
  something_done_.wait(lock, [&] { return piece.done || ticket >= end_; });
  if (ticket >= end_) return false;
  if (piece.error) std::rethrow_exception(piece.error);
  return true;
}

void Workers::release(uint64_t ticket) {
  {
    const std::lock_guard lock(mutex_);
    pieces_[ticket % pieces_.size()] = Piece{};
    released_ = ticket + 1;
  }
  more_to_do_.notify_one();
}

void Workers::run(size_t worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    more_to_do_.wait(
        lock, [&] { return stopping_ || next_ >= end_ || next_ < released_ + pieces_.size(); });
    if (stopping_ || next_ >= end_) return;
    const uint64_t ticket = next_++;
    lock.unlock();
    bool exists = true;
    std::exception_ptr error;
    try {
      exists = work_(worker, ticket);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!exists) {
      end_ = std::min(end_, ticket);
    } else {
      pieces_[ticket % pieces_.size()] = {true, error};
      if (error) end_ = std::min(end_, ticket + 1);
    }
    if (next_ >= end_) more_to_do_.notify_all();
    something_done_.notify_one();
  }
}

}  // namespace coupler::data
