// Tamperer: an attacker on the path between two machines that manipulates one TCP connection. It
// sees every frame and may change, hold back or create frames. Sequence numbers, acknowledgments
// and checksums stay valid for both ends, so that only the ends' own protocol can notice. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "tcp_frame.h"

namespace backend_test {

enum class Tampering {
  kNothing,
  kAlter,    // alters a byte
  kReplace,  // replaces a payload by an earlier one of its direction
  kReflect,  // replaces a payload by one of the other direction
  kDrop,     // removes a payload from the stream
  kRepeat,   // inserts a payload into the stream again
  kSwap,     // swaps a payload with the next
  kCut,      // resets the connection at both ends
  kCross,    // swaps two connections to one rank after the greetings: see Crosser
};

struct Plan {
  Tampering what = Tampering::kNothing;
  size_t least_bytes = 1000;  // minimum size of a payload to tamper with
  int64_t skip = 0;           // number of such payloads to skip first
  size_t at = 500;            // kAlter: position in the payload, in thousandths
};

class Tamperer {
 public:
  // send(end, frame): puts a frame onto the wire to end 0 or 1.
  Tamperer(const Plan& plan, std::function<void(int, const Frame&)> send)
      : plan_(plan), send_(std::move(send)) {}

  // Handles a frame that came from an end. armed: tampering may begin. Once it is done, only keeps
  // the connection valid for both ends.
  void pass(int from, Frame frame, bool armed);

  bool done() const { return done_; }

 private:
  bool begin(int from, TcpFrame& segment, Frame& frame);
  void keep_content(int from, TcpFrame& segment, Frame& frame);
  void answer_dropped(int to);
  void cut(int from, TcpFrame& segment, Frame& frame);
  void out(int to, TcpFrame& segment, Frame& frame);
  void remember(TcpFrame& segment, const Frame& frame);

  Plan plan_;
  std::function<void(int, const Frame&)> send_;
  int64_t seen_ = 0;
  bool done_ = false;
  // The chosen connection: one direction, and the position in it.
  std::optional<TcpFrame::Flow> flow_;
  uint32_t begin_ = 0, bytes_ = 0;
  std::optional<Frame> held_;  // the first of two that are swapped
  // By direction of a connection: the last segment, and the last one with a large enough payload.
  std::map<std::pair<uint64_t, uint32_t>, Frame> last_, last_payload_;
};

}  // namespace backend_test
