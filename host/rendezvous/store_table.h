// StoreTable: the keys, numbers and waiters of a store, with their caps. Knows no sockets. Not
// thread-safe: the server's io thread (or the memory store's lock) owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace coupler {

struct StoreLimits {
  size_t keys = 1u << 20;              // values and numbers together
  size_t bytes = size_t{1} << 30;      // all keys and values
  size_t connections = 4096;           // authenticated
  size_t strangers = 64;               // connections that have not proved themselves yet
  size_t waits_per_connection = 4096;  // gets held back
};

class StoreTable {
 public:
  explicit StoreTable(const StoreLimits& limits) : limits_(limits) {}

  // Who waits for a key: a session and its request.
  struct Waiter {
    uint64_t session;
    uint64_t request;
  };

  // The reason why not, or nothing on success; then `woken` holds who waited for the key.
  std::optional<std::string> set(const std::string& key, std::string value,
                                 std::vector<Waiter>& woken);
  const std::string* find(const std::string& key) const;
  std::optional<std::string> add(const std::string& key, int64_t delta, int64_t& sum);

  void wait(const std::string& key, Waiter waiter);
  void forget(const std::string& key, Waiter waiter);

 private:
  std::optional<std::string> check_room(size_t more_keys, size_t more_bytes) const;

  StoreLimits limits_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> numbers_;
  std::unordered_map<std::string, std::vector<Waiter>> waiters_;
};

}  // namespace coupler
