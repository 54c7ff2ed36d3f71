// SetupLoop: a libgloo device whose event loop exists only while pairs connect.
//
// Once Coupler has taken the connections over, libgloo's thread has nothing left to do but wake up
// a hundred times a second, so it is ended. And while it runs it is made to turn every 100 us:
// libgloo lets whoever takes a descriptor out of its loop, or ends the loop, wait until it has
// turned once, which it does on its own every 10 ms only; such waits would be most of the time that
// connecting takes.
// Thread rule: made and destroyed by one thread. Whatever else holds the device must let go first.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include <memory>
#include <string>

namespace db::gloo_cpu {

class SetupLoop final : private gloo::transport::tcp::Handler {
 public:
  // interface_name: an interface or an address, "" for loopback. Throws what libgloo throws.
  explicit SetupLoop(const std::string& interface_name);
  ~SetupLoop() override;
  SetupLoop(const SetupLoop&) = delete;
  SetupLoop& operator=(const SetupLoop&) = delete;

  const std::shared_ptr<gloo::transport::tcp::Device>& device() const { return device_; }

 private:
  void handleEvents(int events) override;  // on the loop's thread

  std::shared_ptr<gloo::transport::tcp::Device> device_;
  int event_;  // always readable
};

}  // namespace db::gloo_cpu
