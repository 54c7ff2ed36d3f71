#include "comm/work.h"

#include <fmt/format.h>

#include "base/log.h"

namespace coupler::comm {

Work::State::~State() {
  if (pending == nullptr) return;
  state->remove_pending(pending.get());
  state->functions->release(pending->request);
}

// The operation has ended, as far as this thread can tell; one that a stream waits for continues.
void Work::State::end_span() {
  if (span.begin == 0 || on_stream || !spans_recorded()) return;
  span.end = span_clock();
  record_span(span);
}

Work::Work() = default;
Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work ended(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  if (!state_) return;
  try {
    wait();
  } catch (const std::exception& error) {
    // The communicator keeps the error: its next operation throws it.
    log(LogLevel::kError, "comm",
        fmt::format("an operation failed that was never waited for: {}", error.what()));
  }
}

void Work::wait() {
  if (!state_) return;
  ErrorBuffer error;
  const std::unique_ptr<State> ended = std::move(state_);
  CommunicatorState& communicator = *ended->state;
  const db_communicator_functions& functions = *communicator.functions;
  db_request* const request = ended->pending->request;
  const Span span("wait", SpanKind::kWait, 0, ended->span.number, communicator.group);
  const db_status status =
      ended->on_stream ? functions.wait_stream(request, communicator.device->stream(), error.get())
                       : functions.wait_host(request, -1, error.get());
  if (status != DB_OK) throw communicator.failed(ended->pending->operation, status, error);
  ended->end_span();
  if (ended->on_stream) communicator.park(std::move(ended->pending));
}

bool Work::done() {
  if (!state_) return true;
  ErrorBuffer error;
  const db_status status = state_->state->functions->test(state_->pending->request, error.get());
  if (status == DB_IN_PROGRESS) return false;
  const std::unique_ptr<State> ended = std::move(state_);
  if (status != DB_OK) throw ended->state->failed(ended->pending->operation, status, error);
  ended->end_span();
  return true;
}

}  // namespace coupler::comm
