#include "store/table.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "store/wire.h"

namespace coupler::store {
namespace {

bool erase_waiter(std::vector<StoreTable::Waiter>& waiters, StoreTable::Waiter waiter) {
  std::erase_if(waiters, [&](const StoreTable::Waiter& other) {
    return other.session == waiter.session && other.request == waiter.request;
  });
  return waiters.empty();
}

std::string rank_key(const std::string& prefix, uint32_t rank) {
  return fmt::format("{}/{}", prefix, rank);
}

}  // namespace

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
                                           Woken& woken) {
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
  if (recent_ && key.size() > recent_of_.prefix.size() && key.starts_with(recent_of_.prefix)) {
    recent_.reset();
  }
  if (auto node = waiters_.extract(key)) {
    woken.by_key = std::move(node.mapped());
  }
  if (fresh && !rank_waiters_.empty()) {
    count_in(key, woken);
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
  // Wraps like unsigned arithmetic, so that no client can cause an overflow in the server.
  found->second =
      static_cast<int64_t>(static_cast<uint64_t>(found->second) + static_cast<uint64_t>(delta));
  sum = found->second;
  return std::nullopt;
}

void StoreTable::wait(const std::string& key, Waiter waiter) { waiters_[key].push_back(waiter); }

void StoreTable::forget(const std::string& key, Waiter waiter) {
  const auto found = waiters_.find(key);
  if (found != waiters_.end() && erase_waiter(found->second, waiter)) {
    waiters_.erase(found);
  }
}

// Handles a key that is prefix/rank of ranks with waiting requests.
void StoreTable::count_in(std::string_view key, Woken& woken) {
  const size_t slash = key.rfind('/');
  if (slash == std::string_view::npos) {
    return;
  }
  const auto rolls = rank_waiters_.find(std::string(key.substr(0, slash)));
  const auto rank = to_number<uint32_t>(key.substr(slash + 1));
  // "01" is not a rank: every rank has one key.
  if (rolls == rank_waiters_.end() || !rank || std::to_string(*rank) != key.substr(slash + 1)) {
    return;
  }
  for (auto roll = rolls->second.upper_bound(*rank); roll != rolls->second.end();) {
    if (--roll->second.missing > 0) {
      ++roll;
      continue;
    }
    woken.by_ranks.emplace_back(Ranks{rolls->first, roll->first}, std::move(roll->second.waiters));
    roll = rolls->second.erase(roll);
  }
  if (rolls->second.empty()) {
    rank_waiters_.erase(rolls);
  }
}

std::shared_ptr<const StoreTable::RankValues> StoreTable::rank_values(const Ranks& ranks,
                                                                      uint32_t first) {
  if (first == 0 && recent_ && recent_of_.count == ranks.count &&
      recent_of_.prefix == ranks.prefix) {
    return recent_;
  }
  auto result = std::make_shared<RankValues>();
  result->complete = true;
  std::string values;
  for (uint32_t rank = first; rank < ranks.count; ++rank) {
    const std::string* value = find(rank_key(ranks.prefix, rank));
    const size_t size = value == nullptr ? 0 : value->size();
    if (rank > first && values.size() + size + sizeof(uint32_t) > store_wire::kMaxValue) {
      break;
    }
    store_wire::append_rank_value(
        values, value == nullptr ? std::nullopt : std::optional<std::string_view>(*value));
    result->complete = result->complete && value != nullptr;
    ++result->values;
  }
  result->encoded = store_wire::encode_value(values);
  result->digest.update(result->encoded);
  if (first == 0 && result->complete) {
    recent_of_ = ranks;
    recent_ = result;
  }
  return result;
}

bool StoreTable::wait(const Ranks& ranks, Waiter waiter) {
  auto& rolls = rank_waiters_[ranks.prefix];
  const auto [roll, fresh] = rolls.try_emplace(ranks.count);
  if (fresh) {
    for (uint32_t rank = 0; rank < ranks.count; ++rank) {
      roll->second.missing += find(rank_key(ranks.prefix, rank)) == nullptr ? 1 : 0;
    }
  }
  if (roll->second.missing > 0) {
    roll->second.waiters.push_back(waiter);
    return true;
  }
  rolls.erase(roll);
  if (rolls.empty()) {
    rank_waiters_.erase(ranks.prefix);
  }
  return false;
}

void StoreTable::forget(const Ranks& ranks, Waiter waiter) {
  const auto rolls = rank_waiters_.find(ranks.prefix);
  if (rolls == rank_waiters_.end()) {
    return;
  }
  const auto roll = rolls->second.find(ranks.count);
  if (roll != rolls->second.end() && erase_waiter(roll->second.waiters, waiter)) {
    rolls->second.erase(roll);
  }
  if (rolls->second.empty()) {
    rank_waiters_.erase(rolls);
  }
}

}  // namespace coupler::store
