// ConnectionEngine: moves messages over the connections, full-duplex. Each peer has a queue of
// messages to send and one of messages to receive. progress() moves whatever the sockets allow on
// all connections; wait() does so until a group of messages is complete, sleeping in poll(2) while
// nothing moves. Thread rule: one thread at a time (the holder of the queue's turn); abort() from
// any thread.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "common/reduce.h"
#include "gloo_cpu/connection.h"

namespace db::gloo_cpu {

// The wire format: a header before every message, then its bytes. The receiver compares the header
// with what it expects, so that a mismatch between ranks becomes an error instead of a wrong
// result.

struct Header {
  static constexpr uint32_t kMagic = 0x31504343;  // "CCP1"; also detects a different byte order

  uint32_t magic = kMagic;
  uint16_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduce = 0;
  int32_t root_or_tag = 0;
  uint32_t round = 0;     // within the operation
  uint64_t sequence = 0;  // of collectives on the communicator, of messages between two ranks
  uint64_t count = 0;     // db_op.count, or a hash of the counts that all ranks must share
  uint64_t bytes = 0;     // that follow

  friend bool operator==(const Header&, const Header&) = default;
};
static_assert(sizeof(Header) == 40 && std::is_trivially_copyable_v<Header>);

// The header of op's messages, without sequence, round and bytes.
Header make_header(const Op& op, int32_t size);

// "all_reduce of 10 f32 (sum), number 7": what the sender of header was doing.
std::string describe(const Header& header);

// The messages of one operation or round: complete when pending is 0.
struct Group {
  int32_t pending = 0;
};

struct Outgoing {
  Header header;
  const uint8_t* data = nullptr;
  uint64_t sent = 0;  // bytes, header included
  Group* group = nullptr;
  Outgoing* next = nullptr;
};

// data[i] = own[i] (+) received[i]. own may be data.
struct Combine {
  ReduceFunction function = nullptr;
  const uint8_t* own = nullptr;
  uint64_t element = 1;  // bytes
};

struct Incoming {
  Header expected;
  Header header;  // as received
  uint8_t* data = nullptr;
  Combine combine;        // function set: combined instead of overwritten
  uint64_t received = 0;  // bytes, header included
  Group* group = nullptr;
  const Incoming* after = nullptr;  // must be complete before this one is read
  Incoming* next = nullptr;

  bool complete() const { return received == sizeof(Header) + expected.bytes; }
};

// A message that an operation of its own waits for.
struct Message {
  int32_t peer = -1;
  Group group;
  Outgoing out;
  Incoming in;
};

// Messages for reuse. They never move, and those of a failed operation stay, since the engine
// refers to them.
class MessagePool {
 public:
  Message* take();
  void give_back(Message* message) { free_.push_back(message); }
  size_t taken() const { return all_.size() - free_.size(); }

 private:
  std::deque<Message> all_;
  std::vector<Message*> free_;
};

class ConnectionEngine {
 public:
  // connections: by rank, NULL for this rank; they outlive the engine. chunk: how many bytes are
  // combined at once, a multiple of 8.
  ConnectionEngine(int32_t rank, const std::vector<Connection*>& connections, uint64_t chunk);

  // Fill in message and start it. It must not move until its group is complete or the engine is
  // dead. header: as it is sent, and as the one received must be. combine, after: see Incoming.
  void send(int32_t peer, const Header& header, const void* data, Group* group, Outgoing* message);
  void receive(int32_t peer, const Header& header, void* data, Group* group, Incoming* message,
               const Combine& combine = {}, const Incoming* after = nullptr);

  // Moves whatever can be moved now. An error kills the engine: it must not be used afterwards.
  Failure progress(bool* moved);

  // Waits until group is complete. Spins for spin_ns before sleeping, unless spinning has not
  // paid off lately.
  Failure wait(const Group& group, int64_t deadline_ns, int64_t spin_ns);

  // The peer that this rank waits for; -1: none.
  int32_t awaited() const;

  // The peers that owe a message and have not sent any byte of it.
  std::vector<int32_t> silent() const;

  // Ends every wait, now and later; the sockets are shut down but their descriptors stay open.
  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

 private:
  struct PeerQueues {
    Connection* connection = nullptr;
    int32_t peer = -1;
    Outgoing* out = nullptr;
    Outgoing* out_last = nullptr;
    Incoming* in = nullptr;
    Incoming* in_last = nullptr;
  };

  Failure push(PeerQueues& queues, bool* moved);
  Failure pull(PeerQueues& queues, bool* moved);
  int64_t read(const PeerQueues& queues, Incoming& message);
  Failure check(const PeerQueues& queues, const Incoming& message) const;
  Failure lost(const PeerQueues& queues, int error) const;
  void sleep(int64_t nanoseconds);

  const int32_t rank_;
  const uint64_t chunk_;
  std::vector<PeerQueues> queues_;  // the peers only
  std::vector<int> index_;          // rank -> position in queues_
  std::vector<uint8_t> scratch_;
  std::vector<pollfd> polled_;
  int32_t spin_penalty_ = 0;  // about how many waits skip spinning after the next unsuccessful spin
  int32_t spin_skip_ = 0;     // how many of them are left
  std::atomic<bool> aborted_{false};
};

}  // namespace db::gloo_cpu
