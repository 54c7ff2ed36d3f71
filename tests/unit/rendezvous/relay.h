// Relay: stands between a client and a store's server and sees whole frames, which a test may
// alter, hold back, repeat or turn round. A thread for each direction, ended by the destructor.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "loopback_listener.h"
#include "rendezvous/unique_fd.h"

namespace coupler {

class Relay {
 public:
  // What goes on instead of the frame (length, body and MAC), the number-th of its direction.
  using Rule = std::function<std::vector<std::string>(int number, const std::string& frame)>;

  // Takes one connection. Null rules pass everything on.
  Relay(int server_port, Rule to_server, Rule to_client);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return listener_.port; }
  // What rules use to send the other way.
  void say_to_client(const std::string& bytes);

 private:
  void run(int server_port);
  void pass(int from, int to, const Rule& rule);

  LoopbackListener listener_;
  UniqueFd client_, server_;
  Rule to_server_, to_client_;
  std::thread thread_;
};

}  // namespace coupler
