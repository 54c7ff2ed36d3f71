// StoreTable: the keys, numbers and waiters of a store, with their caps. Knows no sockets. Not
// thread-safe: the server's io thread owns it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"

namespace coupler::store {

struct StoreLimits {
  size_t keys = 1u << 20;              // values and numbers together
  size_t bytes = size_t{1} << 30;      // all keys and values
  size_t connections = 16384;          // authenticated
  size_t unauthenticated = 1024;       // connections that have not authenticated yet
  size_t waits_per_connection = 4096;  // pending gets
};

class StoreTable {
 public:
  explicit StoreTable(const StoreLimits& limits) : limits_(limits) {}

  // What waits for a key: a session's request.
  struct Waiter {
    uint64_t session;
    uint64_t request;
  };
  // The values of prefix/0 to prefix/(count - 1), through which ranks exchange data.
  struct Ranks {
    std::string prefix;
    uint32_t count = 0;
  };
  struct Woken {
    std::vector<Waiter> by_key;
    std::vector<std::pair<Ranks, std::vector<Waiter>>> by_ranks;
  };
  // Part of an answer to thousands of clients, encoded and hashed once (wire.h).
  struct RankValues {
    std::string encoded;
    Digest digest;          // of encoded
    uint32_t values = 0;    // how many
    bool complete = false;  // none of them is absent
  };

  // The reason for a refusal, or nullopt on success; then `woken` holds the requests that waited.
  std::optional<std::string> set(const std::string& key, std::string value, Woken& woken);
  const std::string* find(const std::string& key) const;
  std::optional<std::string> add(const std::string& key, int64_t delta, int64_t& sum);

  void wait(const std::string& key, Waiter waiter);
  void forget(const std::string& key, Waiter waiter);

  // From rank `first` on, as many as one frame holds, one at least.
  std::shared_ptr<const RankValues> rank_values(const Ranks& ranks, uint32_t first);
  // False if all are set: there is nothing to wait for.
  bool wait(const Ranks& ranks, Waiter waiter);
  void forget(const Ranks& ranks, Waiter waiter);

 private:
  struct RankWaiters {  // the requests that wait for all of `count`
    uint32_t missing = 0;
    std::vector<Waiter> waiters;
  };

  std::optional<std::string> check_room(size_t more_keys, size_t more_bytes) const;
  void count_in(std::string_view key, Woken& woken);

  StoreLimits limits_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> numbers_;
  std::unordered_map<std::string, std::vector<Waiter>> waiters_;
  std::unordered_map<std::string, std::map<uint32_t, RankWaiters>>
      rank_waiters_;  // by prefix, then count

  // The latest answer: ranks that meet request the same one. Reset when one of its values changes.
  Ranks recent_of_;
  std::shared_ptr<const RankValues> recent_;
};

}  // namespace coupler::store
