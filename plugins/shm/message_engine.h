// MessageEngine: messages between two ranks (SEND and RECV). Each ordered pair of ranks has a ring
// in the segment, a stream of bytes; each message is a header and its data. The receiver compares
// the header with what it expects. Between two ranks, messages are sent and received in the order
// in which they were submitted.
//
// Whoever runs operations moves all messages that are under way, so that two ranks that send to
// each other do not wait for each other. A rank that waits for messages sleeps on its bell, which a
// peer rings after it has filled or emptied one of their rings. Thread rule: one thread at a time
// (the holder of the queue's turn).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "shm/segment.h"
#include "shm/synchronizer.h"

namespace db::shm {

class MessageEngine final : public Background {
 public:
  MessageEngine(int32_t rank, Segment* segment, Peers* peers, Synchronizer* synchronizer);

  // Starts op, a SEND or RECV. OK: complete; DB_IN_PROGRESS: op.native holds it, poll() completes
  // it.
  Failure start(Op& op);
  // Never blocks. An error ends op; a timeout is one.
  Failure poll(Op& op);

  bool is_pending() const override { return pending_ > 0; }
  void advance() override { (void)move_all(); }

 private:
  struct Header {
    uint64_t kind = 0;   // the data type and the tag
    uint64_t count = 0;  // elements
    uint64_t bytes = 0;  // that follow
    uint64_t sequence = 0;

    friend bool operator==(const Header&, const Header&) = default;
  };

  struct Message {
    int32_t peer = -1;
    bool sends = false;
    bool done = false;
    Header header;    // as sent, or as expected
    Header received;  // of an incoming message
    const uint8_t* out = nullptr;
    uint8_t* in = nullptr;
    uint64_t moved = 0;    // bytes, header included
    int64_t asked_ns = 0;  // when poll() last asked the system about the peer
    Failure failure;       // why it was given up
    Message* next = nullptr;
  };

  struct Direction {
    Message* first = nullptr;
    Message* last = nullptr;
    uint64_t started = 0;  // messages so far: both ends number them
  };

  Message* take();
  bool move_all();  // whether anything moved
  bool push(int32_t peer);
  bool pull(int32_t peer);
  uint64_t fill(Ring& ring, Message& message);
  uint64_t drain(Ring& ring, Message& message);
  void finish(Direction& direction);
  void ring_bell(int32_t peer) const;
  Failure wait(const Op& op, Message* message);
  Failure conclude(Op& op, Failure result);
  Failure disagrees(const Message& message) const;
  static std::string describe_header(const Header& header);

  const int32_t rank_, size_;
  Segment* const segment_;
  Peers* const peers_;
  Synchronizer* const synchronizer_;
  std::vector<Direction> outgoing_, incoming_;  // by peer
  int32_t pending_ = 0;
  std::deque<Message> all_;  // never move; those of a failed operation stay
  std::vector<Message*> free_;
};

}  // namespace db::shm
