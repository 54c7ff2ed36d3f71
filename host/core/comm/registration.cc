#include "comm/registration.h"

#include <coupler/registration.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/operation_error.h"
#include "comm/state.h"

namespace coupler {
namespace {

const db_registration* extension_of(const CommunicatorState& state) {
  const auto get = state.functions->get_extension;
  return get == nullptr
             ? nullptr
             : static_cast<const db_registration*>(get(state.communicator, DB_REGISTRATION));
}

// A failure is only noted: everything works without registration.
void note(const CommunicatorState& state, std::string_view what, ErrorBuffer& error) {
  if (!log_enabled(LogLevel::kDebug, "comm")) return;
  log(LogLevel::kDebug, "comm",
      fmt::format("communicator '{}': {}: {}", state.name, what, error.get()->message));
}

}  // namespace

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this != &other) {
    end();
    state_ = std::move(other.state_);
    handle_ = other.handle_;
  }
  return *this;
}

void Registration::end() {
  const std::shared_ptr<CommunicatorState> state = std::move(state_);
  // A failed communicator has released everything.
  if (state == nullptr || state->dead.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(state->submit_mutex);
  ErrorBuffer error;
  if (extension_of(*state)->remove(state->communicator, handle_, error.get()) != DB_OK)
    note(*state, "memory is still registered", error);
}

Registration Communicator::register_memory(void* memory, uint64_t bytes) {
  CommunicatorState& state = *state_;
  if (bytes == 0) return {};
  const std::lock_guard lock(state.submit_mutex);
  const db_registration* extension = extension_of(state);
  if (extension == nullptr) return {};
  state.throw_if_dead();
  void* handle = nullptr;
  ErrorBuffer error;
  if (extension->add(state.communicator, memory, bytes, &handle, error.get()) == DB_OK)
    return {state_, handle};
  note(state, fmt::format("{} bytes are not registered", bytes), error);
  return {};
}

}  // namespace coupler
