// Store: the key-value store through which the ranks of a job meet. Every function may be called
// from any thread; get() blocks its caller only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"

namespace coupler::store {

class Peers;

class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set; nullopt when timeout passed. Zero asks once.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::nanoseconds timeout) = 0;
  // The values of prefix/0 to prefix/(count - 1), through which ranks exchange data. Waits until
  // all are set or timeout has passed; missing ones are then nullopt.
  virtual std::vector<std::optional<std::string>> get_ranks(const std::string& prefix, int count,
                                                            std::chrono::nanoseconds timeout);
  // Adds to the number under key (absent: 0), returns the sum. Numbers are not values.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;

  // What is known about the other ranks; null if the store does not watch them.
  virtual std::shared_ptr<Peers> peers() const { return nullptr; }

  // A key that every process of the job computes alike, and no other process can: HKDF-SHA256 of
  // the job's secret for `purpose`. It is never sent. nullopt if the store has no secret.
  virtual std::optional<Bytes32> derived_key(std::string_view /*purpose*/) const {
    return std::nullopt;
  }

  // A view in which every key starts with prefix + "/"; keeps the parent alive.
  static std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> parent, std::string prefix);
};

// The key under which a rank reports what it was doing when another was lost.
std::string activity_key(int rank);
inline constexpr const char* kActivityPrefix = "coupler/standing/";

// MemoryStore: a store inside this process, for a world of one and for tests. [any-thread].
class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;
  int64_t add(const std::string& key, int64_t delta) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> numbers_;
};

}  // namespace coupler::store
