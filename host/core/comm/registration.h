// Registration: makes memory known to a communicator's backend (coupler/registration.h) while this
// lives, so that the backend may move it without copies through its own buffers. Changes no result.
// Empty if the backend has no such extension or does not take the memory. Movable; must end before
// the memory is freed, on a thread that may use the communicator.
#pragma once

#include <memory>

namespace coupler {

struct CommunicatorState;

class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept = default;
  Registration& operator=(Registration&& other) noexcept;
  ~Registration() { end(); }

 private:
  friend class Communicator;
  Registration(std::shared_ptr<CommunicatorState> state, void* handle)
      : state_(std::move(state)), handle_(handle) {}
  void end();

  std::shared_ptr<CommunicatorState> state_;  // null: empty
  void* handle_ = nullptr;
};

}  // namespace coupler
