#include "store/memory_store.h"

#include "base/socket_io.h"

namespace coupler {

void MemoryStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::get(const std::string& key,
                                            std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline_after(timeout), [&] { return values_.count(key) != 0; });
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

int64_t MemoryStore::add(const std::string& key, int64_t delta) {
  const std::lock_guard lock(mutex_);
  return numbers_[key] += delta;
}

}  // namespace coupler
