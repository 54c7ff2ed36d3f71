// Path: a process in its own network, between two others, that forwards all frames between its
// wires "left" and "right" and tampers with one connection, from construction on. Owned by one
// thread.
#pragma once

#include <atomic>
#include <memory>

#include "network.h"
#include "shared.h"
#include "tamper.h"

namespace backend_test {

class Path {
 public:
  // between: has the two wires, without addresses. armed: whether tampering may begin at once.
  Path(const Network& between, const Plan& plan, bool armed);

  std::atomic<int>* armed() const { return &state_->armed; }  // set to 1 to allow tampering
  bool tampered() const { return state_->done == 1; }
  int64_t frames() const { return state_->frames; }

 private:
  struct State {
    std::atomic<int> armed{0}, done{0}, ready{0};
    std::atomic<int64_t> frames{0};
  };
  static void work(const Plan& plan, State* state);

  Shared<State> state_;
  std::unique_ptr<ChildProcess> process_;  // destroyed before the state
};

}  // namespace backend_test
