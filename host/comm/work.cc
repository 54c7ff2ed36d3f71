#include "comm/work.h"

#include <fmt/format.h>

#include "log/log.h"

namespace coupler {

Work::State::~State() {
  if (pending.request == nullptr) return;
  state->remove_pending(&pending);
  state->functions->release(pending.request);
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
        fmt::format("an operation nobody waited for failed: {}", error.what()));
  }
}

void Work::wait() {
  if (!state_) return;
  ErrorBuffer error;
  const std::unique_ptr<State> ended = std::move(state_);
  const db_status status =
      ended->state->functions->wait_host(ended->pending.request, -1, error.get());
  if (status != DB_OK) throw ended->state->failed(ended->pending.operation, status, error);
}

bool Work::done() {
  if (!state_) return true;
  ErrorBuffer error;
  const db_status status = state_->state->functions->test(state_->pending.request, error.get());
  if (status == DB_IN_PROGRESS) return false;
  const std::unique_ptr<State> ended = std::move(state_);
  if (status != DB_OK) throw ended->state->failed(ended->pending.operation, status, error);
  return true;
}

}  // namespace coupler
