// Work::State: an asynchronous operation with what must outlive it. Like Work, used by one thread
// at a time; the watchdog reads `pending` under the communicator's pending_mutex.
#pragma once

#include <memory>

#include "base/span.h"
#include "comm/communicator.h"
#include "comm/state.h"

namespace coupler::comm {

struct Work::State {
  State(std::shared_ptr<CommunicatorState> communicator, const Operation& operation,
        db_request* request, bool in_stream_order)
      : state(std::move(communicator)),
        pending(std::make_unique<PendingOperation>(PendingOperation{operation, request, {}})),
        on_stream(in_stream_order) {
    state->add_pending(pending.get());
  }
  ~State();  // releases the request, unless the communicator owns it
  void end_span();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<CommunicatorState> state;
  std::unique_ptr<PendingOperation> pending;  // null: the communicator owns it
  const bool on_stream;                       // a stream waits, not the host
  SpanRecord span = {};                       // begun if spans are recorded
};

}  // namespace coupler::comm
