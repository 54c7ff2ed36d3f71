// Work::State: an asynchronous operation with what must outlive it. As Work itself, used by one
// thread at a time; the watchdog looks at `pending` under the communicator's pending_mutex.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/state.h"

namespace coupler {

struct Work::State {
  State(std::shared_ptr<CommunicatorState> communicator, const Operation& operation,
        db_request* request)
      : state(std::move(communicator)), pending{operation, request, {}} {
    state->add_pending(&pending);
  }
  ~State();  // gives the request back
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<CommunicatorState> state;
  PendingOperation pending;
};

}  // namespace coupler
