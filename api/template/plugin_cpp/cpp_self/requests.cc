#include "cpp_self/requests.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace plugin {

Time after(int64_t timeout_ns) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() +
         std::min(std::chrono::nanoseconds(timeout_ns), kLongest);
}

// Called with the mutex held, like all functions named ..._locked.
void Mailbox::complete(db_request &request, db_status status) {
  request.status = status;
  if (request.released) delete &request;
}

void Mailbox::end_locked(db_status reason) {
  if (state_ == DB_OK) state_ = reason;
  for (db_request *request : std::exchange(waiting_, {}))
    complete(*request, DB_ERR_ABORTED);
  changed_.notify_all();
}

db_status Mailbox::post(db_request &mine) {
  const std::lock_guard lock(mutex_);
  if (state_ != DB_OK) return DB_ERR_ABORTED;
  const auto place = std::find_if(
      waiting_.begin(), waiting_.end(), [&](const db_request *other) {
        return other->tag == mine.tag && other->is_send != mine.is_send;
      });
  if (place == waiting_.end()) {
    waiting_.push_back(&mine);
    return DB_IN_PROGRESS;
  }
  db_request &other = **place;
  waiting_.erase(place);
  if (other.bytes != mine.bytes) {
    complete(other, DB_ERR_MISMATCH);
    end_locked(DB_ERR_MISMATCH);
    return DB_ERR_MISMATCH;
  }
  const db_request &from = mine.is_send ? mine : other;
  const db_request &to = mine.is_send ? other : mine;
  if (from.bytes > 0) std::memmove(to.recv, from.send, from.bytes);
  complete(other, DB_OK);
  changed_.notify_all();
  return DB_OK;
}

db_status Mailbox::expire_locked(db_request &request) {
  if (request.status != DB_IN_PROGRESS ||
      std::chrono::steady_clock::now() < request.deadline)
    return request.status;
  waiting_.remove(&request);
  request.status = DB_ERR_TIMEOUT;
  end_locked(DB_ERR_TIMEOUT);
  return request.status;
}

db_status Mailbox::test(db_request &request) {
  const std::lock_guard lock(mutex_);
  return expire_locked(request);
}

db_status Mailbox::wait(db_request &request, Time until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::min(until, request.deadline),
                      [&] { return request.status != DB_IN_PROGRESS; });
  return expire_locked(request);
}

void Mailbox::release(db_request *request) {
  const std::lock_guard lock(mutex_);
  if (request->status == DB_IN_PROGRESS) {
    request->released = true;  // the message is still in flight
  } else {
    delete request;
  }
}

void Mailbox::end(db_status reason) {
  const std::lock_guard lock(mutex_);
  end_locked(reason);
}

db_status Mailbox::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace plugin
