// Crosser: an attacker on the path between two machines that lets two ranks of one machine greet
// the same rank of the other, and then swaps the two connections: what follows the greetings is
// exchanged between them, in both directions, and stays valid TCP. The ranks notice only if the
// protection is bound to the preceding greeting. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tcp_frame.h"

namespace backend_test {

class Crosser {
 public:
  // send(end, frame): puts a frame onto the wire to end 0 or 1.
  explicit Crosser(std::function<void(int, const Frame&)> send) : send_(std::move(send)) {}

  void pass(int from, Frame frame);  // handles a frame that came from an end
  bool done() const { return crossing_; }

 private:
  struct Connection {
    TcpFrame::Flow flow;                 // from the connecting side
    uint32_t first = 0, first_back = 0;  // first sequence numbers of both directions
    bool greeted = false;
  };
  void choose(TcpFrame& segment);
  void exchange(TcpFrame& segment, const Connection& seen, const Connection& other, bool forward);

  std::function<void(int, const Frame&)> send_;
  std::array<std::optional<Connection>, 2> chosen_;
  bool crossing_ = false;
};

}  // namespace backend_test
