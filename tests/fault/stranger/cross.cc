#include "cross.h"

namespace backend_test {
namespace {

// The size of a greeting in gloo_cpu's handshake.cc: from the connecting side, and back.
constexpr uint32_t kGreeting = 80, kGreetingBack = 84;

uint32_t destination_port(const TcpFrame::Flow& flow) { return flow.ports & 0xffff; }

}  // namespace

// The first connection, and the next to the same rank.
void Crosser::choose(TcpFrame& segment) {
  const TcpFrame::Flow flow = segment.flow();
  const auto fits = [&] {
    return chosen_[0] && !(chosen_[0]->flow == flow) &&
           chosen_[0]->flow.addresses == flow.addresses &&
           destination_port(chosen_[0]->flow) == destination_port(flow);
  };
  const Connection connection{flow, segment.sequence()};
  if (!chosen_[0]) {
    chosen_[0] = connection;
  } else if (!chosen_[1] && fits()) {
    chosen_[1] = connection;
  }
}

void Crosser::pass(int from, Frame frame) {
  if (!TcpFrame::is_one(frame)) return send_(1 - from, frame);
  TcpFrame segment(frame);
  const bool opens = (segment.flags() & TcpFrame::kSynchronizes) != 0;
  const bool answers = (segment.flags() & TcpFrame::kAcknowledges) != 0;
  if (opens) segment.simplify_options();
  if (opens && !answers) choose(segment);
  for (size_t i = 0; i < 2; ++i) {
    if (!chosen_[i]) continue;
    Connection& seen = *chosen_[i];
    const bool forward = segment.flow() == seen.flow;
    if (!forward && !(segment.flow() == seen.flow.reversed())) continue;
    if (opens && answers) seen.first_back = segment.sequence();
    if (opens) break;
    const uint32_t end = segment.sequence() + static_cast<uint32_t>(segment.payload().size());
    const uint32_t past = 1 + (forward ? kGreeting : kGreetingBack);
    const bool beyond = !reaches((forward ? seen.first : seen.first_back) + past, end);
    if (forward && reaches(segment.acknowledged(), seen.first_back + 1 + kGreetingBack)) {
      seen.greeted = true;
    }
    crossing_ = crossing_ || (chosen_[0]->greeted && chosen_[1] && chosen_[1]->greeted);
    // Too early: dropped, since TCP sends it again.
    if (beyond && !crossing_) return;
    if (crossing_) exchange(segment, seen, *chosen_[1 - i], forward);
    break;
  }
  segment.fix_checksums();
  send_(1 - from, frame);
}

void Crosser::exchange(TcpFrame& segment, const Connection& seen, const Connection& other,
                       bool forward) {
  const uint32_t shift = other.first - seen.first;
  const uint32_t shift_back = other.first_back - seen.first_back;
  segment.set_flow(forward ? other.flow : other.flow.reversed());
  segment.set_sequence(segment.sequence() + (forward ? shift : shift_back));
  segment.set_acknowledged(segment.acknowledged() + (forward ? shift_back : shift));
}

}  // namespace backend_test
