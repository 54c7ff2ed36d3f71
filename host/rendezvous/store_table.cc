#include "rendezvous/store_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace coupler {

std::optional<std::string> StoreTable::check_room(size_t more_keys, size_t more_bytes) const {
  if (values_.size() + numbers_.size() + more_keys > limits_.keys) {
    return fmt::format("the store is full: it holds {} keys", limits_.keys);
  }
  if (bytes_ + more_bytes > limits_.bytes) {
    return fmt::format("the store is full: it holds {} bytes", bytes_);
  }
  return std::nullopt;
}

std::optional<std::string> StoreTable::set(const std::string& key, std::string value,
                                           std::vector<Waiter>& woken) {
  const auto old = values_.find(key);
  const bool fresh = old == values_.end();
  const size_t freed = fresh ? 0 : old->second.size();
  const size_t needed = value.size() + (fresh ? key.size() : 0);
  if (auto reason = check_room(fresh ? 1 : 0, needed > freed ? needed - freed : 0)) {
    return reason;
  }
  bytes_ += needed;
  bytes_ -= freed;
  values_.insert_or_assign(key, std::move(value));
  if (auto node = waiters_.extract(key)) {
    woken = std::move(node.mapped());
  }
  return std::nullopt;
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::string> StoreTable::add(const std::string& key, int64_t delta, int64_t& sum) {
  auto found = numbers_.find(key);
  if (found == numbers_.end()) {
    if (auto reason = check_room(1, key.size())) {
      return reason;
    }
    bytes_ += key.size();
    found = numbers_.emplace(key, 0).first;
  }
  // Wraps as unsigned arithmetic does: no client can make the server overflow.
  found->second =
      static_cast<int64_t>(static_cast<uint64_t>(found->second) + static_cast<uint64_t>(delta));
  sum = found->second;
  return std::nullopt;
}

void StoreTable::wait(const std::string& key, Waiter waiter) { waiters_[key].push_back(waiter); }

void StoreTable::forget(const std::string& key, Waiter waiter) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) {
    return;
  }
  std::erase_if(found->second, [&](const Waiter& other) {
    return other.session == waiter.session && other.request == waiter.request;
  });
  if (found->second.empty()) {
    waiters_.erase(found);
  }
}

}  // namespace coupler
