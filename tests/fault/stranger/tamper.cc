#include "tamper.h"

#include <algorithm>

namespace backend_test {
namespace {

std::pair<uint64_t, uint32_t> key(const TcpFrame::Flow& flow) {
  return {flow.addresses, flow.ports};
}

}  // namespace

void Tamperer::pass(int from, Frame frame, bool armed) {
  const int to = 1 - from;
  if (!TcpFrame::is_one(frame)) return send_(to, frame);
  TcpFrame segment(frame);
  if (flow_ && (segment.flow() == *flow_ || segment.flow() == flow_->reversed())) {
    return keep_content(from, segment, frame);
  }
  if (!flow_ && armed && plan_.what != Tampering::kNothing &&
      segment.payload().size() >= plan_.least_bytes && seen_++ >= plan_.skip &&
      begin(from, segment, frame)) {
    return;
  }
  remember(segment, frame);
  send_(to, frame);
}

// Keeps the frame for replays.
void Tamperer::remember(TcpFrame& segment, const Frame& frame) {
  last_[key(segment.flow())] = frame;
  if (segment.payload().size() >= plan_.least_bytes) last_payload_[key(segment.flow())] = frame;
}

void Tamperer::out(int to, TcpFrame& segment, Frame& frame) {
  segment.fix_checksums();
  send_(to, frame);
}

// False: this segment is not suitable.
bool Tamperer::begin(int from, TcpFrame& segment, Frame& frame) {
  const int to = 1 - from;
  const TcpFrame::Flow flow = segment.flow();
  const std::span<uint8_t> payload = segment.payload();
  begin_ = segment.sequence();
  bytes_ = static_cast<uint32_t>(payload.size());
  switch (plan_.what) {
    case Tampering::kNothing:
    case Tampering::kCross:
      return false;
    case Tampering::kAlter:
      payload[payload.size() * plan_.at / 1000] ^= 0xff;
      out(to, segment, frame);
      break;
    case Tampering::kReplace:
    case Tampering::kReflect: {
      const bool same = plan_.what == Tampering::kReplace;
      const auto found = last_payload_.find(key(same ? flow : flow.reversed()));
      if (found == last_payload_.end()) return false;
      const std::span<uint8_t> other = TcpFrame(found->second).payload();
      // Excludes a retransmission of the same bytes, and bytes that happen to be equal.
      if (other.size() != payload.size() || std::equal(other.begin(), other.end(), payload.begin()))
        return false;
      std::copy(other.begin(), other.end(), payload.begin());
      out(to, segment, frame);
      break;
    }
    case Tampering::kDrop:
      if (!last_.contains(key(flow.reversed()))) return false;
      flow_ = flow;
      answer_dropped(from);
      break;
    case Tampering::kRepeat:
      send_(to, frame);
      segment.set_sequence(begin_ + bytes_);
      out(to, segment, frame);
      break;
    case Tampering::kSwap:
      held_ = frame;
      flow_ = flow;
      return true;  // done once the next one has arrived
    case Tampering::kCut:
      cut(from, segment, frame);
      break;
  }
  flow_ = flow;
  done_ = true;
  return true;
}

// Makes the sender believe that the dropped payload has arrived.
void Tamperer::answer_dropped(int to) {
  Frame& frame = last_.at(key(flow_->reversed()));
  TcpFrame answer(frame);
  answer.set_sequence(answer.sequence() + static_cast<uint32_t>(answer.payload().size()));
  answer.set_acknowledged(begin_ + bytes_);
  answer.make_empty(TcpFrame::kAcknowledges);
  out(to, answer, frame);
}

void Tamperer::cut(int from, TcpFrame& segment, Frame& frame) {
  Frame back = frame;
  segment.make_empty(TcpFrame::kReset | TcpFrame::kAcknowledges);
  out(1 - from, segment, frame);
  // The same in the other direction: swaps the addresses of both layers and the ports.
  std::swap_ranges(back.begin(), back.begin() + 6, back.begin() + 6);
  std::swap_ranges(back.begin() + 26, back.begin() + 30, back.begin() + 30);
  std::swap_ranges(back.begin() + 34, back.begin() + 36, back.begin() + 36);
  TcpFrame reset(back);
  const uint32_t sequence = reset.acknowledged();
  reset.set_acknowledged(begin_ + bytes_);
  reset.set_sequence(sequence);
  reset.make_empty(TcpFrame::kReset | TcpFrame::kAcknowledges);
  out(from, reset, back);
}

void Tamperer::keep_content(int from, TcpFrame& segment, Frame& frame) {
  const int to = 1 - from;
  const bool forward = segment.flow() == *flow_;
  const uint32_t end = begin_ + bytes_;
  switch (plan_.what) {
    case Tampering::kDrop:
      if (forward && reaches(segment.sequence(), begin_) && !reaches(segment.sequence(), end)) {
        return answer_dropped(from);  // a retransmission
      }
      if (forward && reaches(segment.sequence(), end)) {
        segment.set_sequence(segment.sequence() - bytes_);
      }
      if (!forward && reaches(segment.acknowledged(), begin_)) {
        segment.set_acknowledged(segment.acknowledged() + bytes_);
      }
      if (!forward) remember(segment, frame);
      return out(to, segment, frame);
    case Tampering::kRepeat:
      if (forward && reaches(segment.sequence(), end)) {
        segment.set_sequence(segment.sequence() + bytes_);
      }
      if (!forward && reaches(segment.acknowledged(), end)) {
        const uint32_t beyond =
            std::max<int32_t>(static_cast<int32_t>(segment.acknowledged() - end - bytes_), 0);
        segment.set_acknowledged(end + beyond);
      }
      return out(to, segment, frame);
    case Tampering::kSwap: {
      if (!held_ || !forward || segment.payload().empty()) return send_(to, frame);
      TcpFrame first(*held_);
      const std::span<uint8_t> one = first.payload(), other = segment.payload();
      const bool next = segment.sequence() == end && one.size() == other.size();
      if (next) std::swap_ranges(one.begin(), one.end(), other.begin());
      if (segment.sequence() != begin_) out(to, first, *held_);  // otherwise a retransmission
      held_.reset();
      done_ = done_ || next;
      if (!next) flow_.reset();  // tries again
      return out(to, segment, frame);
    }
    case Tampering::kCut:
      return;  // the connection is dead
    case Tampering::kNothing:
    case Tampering::kCross:
    case Tampering::kAlter:
    case Tampering::kReplace:
    case Tampering::kReflect:
      return send_(to, frame);
  }
}

}  // namespace backend_test
