#include "plugin/self_channel.h"

#include <algorithm>
#include <cstring>

namespace coupler {

SelfChannel::Handle SelfChannel::post(const Message& message) {
  auto mine = std::make_shared<Message>(message);
  const std::lock_guard lock(mutex_);
  if (state_ != DB_OK) {
    mine->status = DB_ERR_ABORTED;
    return mine;
  }
  const auto other = std::find_if(waiting_.begin(), waiting_.end(), [&](const Handle& waits) {
    return waits->tag == mine->tag && (waits->send == nullptr) != (mine->send == nullptr);
  });
  if (other == waiting_.end()) {
    waiting_.push_back(mine);
    return mine;
  }
  const Handle theirs = *other;
  waiting_.erase(other);
  if (theirs->bytes != mine->bytes) {
    theirs->status = mine->status = DB_ERR_MISMATCH;
    end_locked(DB_ERR_MISMATCH);
    return mine;
  }
  const Message& from = mine->send != nullptr ? *mine : *theirs;
  const Message& to = mine->send != nullptr ? *theirs : *mine;
  if (from.bytes != 0) std::memmove(to.recv, from.send, from.bytes);
  theirs->status = mine->status = DB_OK;
  changed_.notify_all();
  return mine;
}

db_status SelfChannel::expire(const Handle& handle) {
  if (handle->status == DB_IN_PROGRESS && Clock::now() >= handle->deadline) {
    handle->status = DB_ERR_TIMEOUT;
    std::erase(waiting_, handle);
    end_locked(DB_ERR_TIMEOUT);
  }
  return handle->status;
}

db_status SelfChannel::test(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  return expire(handle);
}

db_status SelfChannel::wait(const Handle& handle, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::min(until, handle->deadline),
                      [&] { return handle->status != DB_IN_PROGRESS; });
  return expire(handle);
}

db_status SelfChannel::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

void SelfChannel::end(db_status reason) {
  const std::lock_guard lock(mutex_);
  end_locked(reason);
}

void SelfChannel::end_locked(db_status reason) {
  if (state_ == DB_OK) state_ = reason;
  for (const Handle& handle : waiting_) handle->status = DB_ERR_ABORTED;
  waiting_.clear();
  changed_.notify_all();
}

}  // namespace coupler
