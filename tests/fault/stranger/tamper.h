// Tamperer: what somebody on the path between two machines does to one TCP connection. He sees
// every frame, may change, keep and make any, and keeps both ends' TCP content: sequence numbers,
// acknowledgments and checksums fit afterwards, so that only the ends themselves can notice. One
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
  kAlter,    // a byte
  kReplace,  // a payload by an earlier one of its direction
  kReflect,  // a payload by one of the other direction
  kDrop,     // a payload, and the stream closes up behind it
  kRepeat,   // a payload, and the stream makes room for it
  kSwap,     // a payload with the next
  kCut,      // the connection, by a reset to either end
  kCross,    // what follows the greetings on two connections to one rank: see Crosser
};

struct Plan {
  Tampering what = Tampering::kNothing;
  size_t least_bytes = 1000;  // of a payload that he touches
  int64_t skip = 0;           // payloads that he leaves alone, of those
  size_t at = 500;            // kAlter: where in the payload, in thousandths
};

class Tamperer {
 public:
  // send(end, frame): puts a frame onto the wire to end 0 or 1.
  Tamperer(const Plan& plan, std::function<void(int, const Frame&)> send)
      : plan_(plan), send_(std::move(send)) {}

  // A frame that came from an end. armed: now he may begin; once he has done it, he only keeps the
  // ends content.
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
  // The connection that he chose: one direction, and where in it.
  std::optional<TcpFrame::Flow> flow_;
  uint32_t begin_ = 0, bytes_ = 0;
  std::optional<Frame> held_;  // the first of two that are swapped
  // By direction of a connection: the last segment, and the last payload that could be touched.
  std::map<std::pair<uint64_t, uint32_t>, Frame> last_, last_payload_;
};

}  // namespace backend_test
