#include "store/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/socket.h"

namespace coupler::store {

// For stores without an operation for several keys.
std::vector<std::optional<std::string>> Store::get_ranks(const std::string& prefix, int count,
                                                         std::chrono::nanoseconds timeout) {
  const auto deadline = deadline_after(timeout);
  std::vector<std::optional<std::string>> values;
  for (int rank = 0; rank < count; ++rank) {
    const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
    values.push_back(
        get(fmt::format("{}/{}", prefix, rank), std::max(left, std::chrono::nanoseconds(0))));
  }
  return values;
}

std::string activity_key(int rank) { return kActivityPrefix + std::to_string(rank); }

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

namespace {

class PrefixStore : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> parent, std::string prefix)
      : parent_(std::move(parent)), prefix_(std::move(prefix) + "/") {}

  void set(const std::string& key, const std::string& value) override {
    parent_->set(prefix_ + key, value);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::nanoseconds timeout) override {
    return parent_->get(prefix_ + key, timeout);
  }
  std::vector<std::optional<std::string>> get_ranks(const std::string& prefix, int count,
                                                    std::chrono::nanoseconds timeout) override {
    return parent_->get_ranks(prefix_ + prefix, count, timeout);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    return parent_->add(prefix_ + key, delta);
  }
  std::shared_ptr<Peers> peers() const override { return parent_->peers(); }
  std::optional<Bytes32> derived_key(std::string_view purpose) const override {
    return parent_->derived_key(purpose);
  }

 private:
  std::shared_ptr<Store> parent_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> Store::with_prefix(std::shared_ptr<Store> parent, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(parent), std::move(prefix));
}

}  // namespace coupler::store
