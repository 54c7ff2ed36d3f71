// FakeBase: a test double of a transport's communicator. It moves no data and records its calls.
// For one thread.
#pragma once

#include <coupler/distributed_backend.h>

#include <memory>
#include <string>
#include <vector>

namespace db {

class FakeBase {
 public:
  explicit FakeBase(int32_t rank = 0, int32_t size = 1, bool splits = true);

  db_communicator* handle() { return &communicator_; }
  // The calls to it and to its splits, in order: "submit", "split", ….
  const std::vector<std::string>& calls() const { return *calls_; }

 private:
  struct Functions;
  FakeBase(int32_t rank, int32_t size, std::shared_ptr<std::vector<std::string>> calls);
  static FakeBase& self(const db_communicator* communicator);
  void note(const char* call) const { calls_->push_back(call); }

  db_communicator communicator_{};  // first member: the wrapper's pointer points to this
  db_communicator_functions functions_{};
  std::shared_ptr<std::vector<std::string>> calls_;
};

}  // namespace db
