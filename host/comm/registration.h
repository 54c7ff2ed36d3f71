// Registration: memory that a communicator's backend knows (coupler/registration.h) as long as this
// lives, so that it may move it without copies through buffers of its own. Changes no result, and
// is empty where the backend has no such extension or would not take the memory. Movable; ends
// before the memory is freed, on a thread that may use the communicator.
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
