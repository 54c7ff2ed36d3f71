// MemoryStore: a store inside this process, for a world of one and for tests. [any-thread].
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_map>

#include "store/store.h"

namespace coupler {

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

}  // namespace coupler
