// Relay: sits between a client and a store's server and handles whole frames, which a test may
// modify, delay, repeat or reorder. One thread per direction, joined by the destructor.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "loopback_listener.h"

namespace coupler::store {

class Relay {
 public:
  // The frames to forward instead of `frame` (length, body, MAC), the number-th of its direction.
  using Rule = std::function<std::vector<std::string>(int number, const std::string& frame)>;

  // Accepts one connection. Null rules forward everything unchanged.
  Relay(int server_port, Rule to_server, Rule to_client);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return listener_.port; }
  // Lets rules send in the other direction.
  void say_to_client(const std::string& bytes);

 private:
  void run(int server_port);
  void pass(int from, int to, const Rule& rule);

  LoopbackListener listener_;
  UniqueFd client_, server_;
  Rule to_server_, to_client_;
  std::thread thread_;
};

}  // namespace coupler::store
