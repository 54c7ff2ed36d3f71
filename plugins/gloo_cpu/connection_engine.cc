#include "gloo_cpu/connection_engine.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "common/op.h"

namespace db::gloo_cpu {
namespace {

uint64_t hash(const uint64_t* counts, int32_t size) {
  uint64_t value = 14695981039346656037ULL;  // FNV-1a over the numbers
  for (int32_t i = 0; i < size; ++i) value = (value ^ counts[i]) * 1099511628211ULL;
  return value;
}

bool shares_counts(db_kind kind) { return kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V; }

// One send call moves at most this much, so that sending and receiving alternate.
constexpr uint64_t kSendStep = 1 << 20;

// After a spin without success, a rank skips spinning the next 1, 3, 7 … times, up to this many:
// the peer may be late regularly, or need the core on which this rank spins.
constexpr int32_t kLongestSpinPenalty = 63;

// The parts of a message that are still to be moved.
struct Parts {
  iovec parts[2];
  size_t used = 0;

  void add(void* data, uint64_t bytes) {
    if (bytes > 0) parts[used++] = {data, bytes};
  }
};

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Header make_header(const Op& op, int32_t size) {
  Header header;
  header.kind = static_cast<uint16_t>(op.kind);
  header.dtype = static_cast<uint8_t>(op.dtype);
  header.reduce = static_cast<uint8_t>(op.reduce);
  if (is_rooted(op.kind)) header.root_or_tag = op.root_or_peer;
  if (is_point_to_point(op.kind)) {
    header.kind = DB_SEND;  // both ends describe the same message
    header.root_or_tag = op.tag;
  }
  header.count = shares_counts(op.kind) ? hash(op.recv_counts, size) : op.count;
  return header;
}

std::string describe(const Header& header) {
  if (header.magic != Header::kMagic) return "bytes that are not a message of this backend";
  std::string text = kind_name(header.kind);
  if (header.kind != DB_BARRIER) {
    if (shares_counts(header.kind) || header.kind == DB_ALL_TO_ALL_V) {
      text += " of " + std::to_string(header.bytes) + " bytes (counts hash " +
              std::to_string(header.count % 1000000) + ") " + dtype_name(header.dtype);
    } else {
      text += " of " + std::to_string(header.count) + " " + dtype_name(header.dtype);
    }
  }
  if (header.reduce != 0) text += std::string(" (") + reduce_name(header.reduce) + ")";
  if (is_rooted(header.kind)) text += " with root " + std::to_string(header.root_or_tag);
  if (header.kind == DB_SEND) text += " with tag " + std::to_string(header.root_or_tag);
  return text + ", number " + std::to_string(header.sequence);
}

Message* MessagePool::take() {
  if (free_.empty()) free_.push_back(&all_.emplace_back());
  Message* const message = free_.back();
  free_.pop_back();
  *message = {};
  return message;
}

ConnectionEngine::ConnectionEngine(int32_t rank, const std::vector<Connection*>& connections,
                                   uint64_t chunk)
    : rank_(rank), chunk_(chunk), index_(connections.size(), -1) {
  // Each rank starts with its next neighbor, so that they do not all start with rank 0.
  const auto size = static_cast<int32_t>(connections.size());
  for (int32_t step = 1; step < size; ++step) {
    const int32_t peer = (rank + step) % size;
    index_[static_cast<size_t>(peer)] = static_cast<int>(queues_.size());
    PeerQueues queues;
    queues.connection = connections[static_cast<size_t>(peer)];
    queues.peer = peer;
    queues_.push_back(queues);
  }
  polled_.resize(queues_.size());
}

void ConnectionEngine::send(int32_t peer, const Header& header, const void* data, Group* group,
                            Outgoing* message) {
  PeerQueues& queues = queues_[static_cast<size_t>(index_[static_cast<size_t>(peer)])];
  *message = {};
  message->header = header;
  message->data = static_cast<const uint8_t*>(data);
  message->group = group;
  ++group->pending;
  (queues.out != nullptr ? queues.out_last->next : queues.out) = message;
  queues.out_last = message;
}

void ConnectionEngine::receive(int32_t peer, const Header& header, void* data, Group* group,
                               Incoming* message, const Combine& combine, const Incoming* after) {
  PeerQueues& queues = queues_[static_cast<size_t>(index_[static_cast<size_t>(peer)])];
  *message = {};
  message->expected = header;
  message->data = static_cast<uint8_t*>(data);
  message->combine = combine;
  message->group = group;
  message->after = after;
  ++group->pending;
  if (combine.function != nullptr && scratch_.empty()) scratch_.resize(chunk_);
  (queues.in != nullptr ? queues.in_last->next : queues.in) = message;
  queues.in_last = message;
}

Failure ConnectionEngine::progress(bool* moved) {
  if (aborted()) return Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD);
  for (PeerQueues& queues : queues_) {
    if (queues.out != nullptr) {
      if (Failure failure = push(queues, moved); !failure.ok()) return failure;
    }
    if (queues.in != nullptr) {
      if (Failure failure = pull(queues, moved); !failure.ok()) return failure;
    }
  }
  return {};
}

Failure ConnectionEngine::push(PeerQueues& queues, bool* moved) {
  Outgoing& message = *queues.out;
  const uint64_t total = sizeof(Header) + message.header.bytes;
  const uint64_t in_header = std::min<uint64_t>(message.sent, sizeof(Header));
  const uint64_t done = message.sent - in_header;
  Parts left;
  left.add(reinterpret_cast<uint8_t*>(&message.header) + in_header, sizeof(Header) - in_header);
  left.add(const_cast<uint8_t*>(message.data) + done,
           std::min(message.header.bytes - done, kSendStep));
  const int64_t sent = queues.connection->send(left.parts, left.used);
  if (sent < 0) return would_block(errno) ? Failure{} : lost(queues, errno);
  *moved = true;
  message.sent += static_cast<uint64_t>(sent);
  if (message.sent == total) {
    queues.out = message.next;
    --message.group->pending;
  }
  return {};
}

// One receive call for message, with its result.
int64_t ConnectionEngine::read(const PeerQueues& queues, Incoming& message) {
  const uint64_t in_header = std::min<uint64_t>(message.received, sizeof(Header));
  const uint64_t done = message.received - in_header;
  uint8_t* into = message.data + done;
  uint64_t room = message.expected.bytes - done;
  if (message.combine.function != nullptr) {
    const uint64_t filled = done % chunk_;
    into = scratch_.data() + filled;
    room = std::min(room, chunk_ - filled);
  }
  Parts left;
  left.add(reinterpret_cast<uint8_t*>(&message.header) + in_header, sizeof(Header) - in_header);
  left.add(into, room);
  return queues.connection->receive(left.parts, left.used);
}

Failure ConnectionEngine::pull(PeerQueues& queues, bool* moved) {
  Incoming& message = *queues.in;
  if (message.after != nullptr && !message.after->complete()) return {};
  const int64_t got = read(queues, message);
  if (got < 0) return would_block(errno) ? Failure{} : lost(queues, errno);
  if (got == 0) return lost(queues, 0);
  *moved = true;
  const bool had_header = message.received >= sizeof(Header);
  const uint64_t before = had_header ? message.received - sizeof(Header) : 0;
  message.received += static_cast<uint64_t>(got);
  if (message.received < sizeof(Header)) return {};
  if (!had_header) {
    if (Failure failure = check(queues, message); !failure.ok()) return failure;
  }
  const uint64_t done = message.received - sizeof(Header);
  const bool complete = message.complete();
  if (message.combine.function != nullptr && done > before && (complete || done % chunk_ == 0)) {
    const uint64_t start = (done - 1) / chunk_ * chunk_;
    message.combine.function(message.data + start, message.combine.own + start, scratch_.data(),
                             (done - start) / message.combine.element);
  }
  if (complete) {
    queues.in = message.next;
    --message.group->pending;
  }
  return {};
}

Failure ConnectionEngine::check(const PeerQueues& queues, const Incoming& message) const {
  if (message.header == message.expected) return {};
  std::string text = "rank " + std::to_string(rank_) + " is in " + describe(message.expected) +
                     ", but rank " + std::to_string(queues.peer) + " is in " +
                     describe(message.header) +
                     "; every rank must start the same operations in the same order";
  return Failure::make(DB_ERR_MISMATCH, std::move(text), DB_ERROR_COMM_DEAD, queues.peer);
}

Failure ConnectionEngine::lost(const PeerQueues& queues, int error) const {
  if (aborted()) return Failure::make(DB_ERR_ABORTED, "abort was called", DB_ERROR_COMM_DEAD);
  std::string text =
      "rank " + std::to_string(queues.peer) + " is gone: its connection to rank " +
      std::to_string(rank_) +
      (error == 0         ? " was closed"
       : error == EBADMSG ? " delivered bytes that it did not send: the data is altered between "
                            "the machines"
                          : std::string(" failed: ") + strerror(error));
  return Failure::make(DB_ERR_PEER_LOST, std::move(text), DB_ERROR_COMM_DEAD, queues.peer, error);
}

Failure ConnectionEngine::wait(const Group& group, int64_t deadline_ns, int64_t spin_ns) {
  if (spin_skip_ > 0) {
    --spin_skip_;
    spin_ns = 0;
  }
  int64_t idle_since = 0;
  while (group.pending > 0) {
    bool moved = false;
    if (Failure failure = progress(&moved); !failure.ok()) return failure;
    if (moved) {
      if (idle_since != 0 && spin_ns > 0) spin_penalty_ = 0;
      idle_since = 0;
      continue;
    }
    const int64_t now = now_ns();
    if (now >= deadline_ns) {
      return Failure::make(DB_ERR_TIMEOUT, "", DB_ERROR_COMM_DEAD, awaited());
    }
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < spin_ns) {
      cpu_pause();
      continue;
    }
    if (spin_ns > 0) {  // spun without success
      spin_penalty_ = std::min(2 * spin_penalty_ + 1, kLongestSpinPenalty);
      spin_skip_ = spin_penalty_;
      spin_ns = 0;
    }
    sleep(deadline_ns - now);
    idle_since = 0;
  }
  return {};
}

void ConnectionEngine::sleep(int64_t nanoseconds) {
  size_t used = 0;
  for (const PeerQueues& queues : queues_) {
    const bool reads =
        queues.in != nullptr && (queues.in->after == nullptr || queues.in->after->complete());
    const int events = (queues.out != nullptr ? POLLOUT : 0) | (reads ? POLLIN : 0);
    // An idle connection is left out: its peer may have exited normally.
    if (events != 0) polled_[used++] = {queues.connection->fd(), static_cast<short>(events), 0};
  }
  const timespec limit{nanoseconds / 1000000000, nanoseconds % 1000000000};
  // Whatever this returns, even an error, the caller checks the sockets and the clock again.
  (void)ppoll(polled_.data(), used, &limit, nullptr);
}

int32_t ConnectionEngine::awaited() const {
  for (const PeerQueues& queues : queues_)
    if (queues.in != nullptr) return queues.peer;
  for (const PeerQueues& queues : queues_)
    if (queues.out != nullptr) return queues.peer;
  return -1;
}

std::vector<int32_t> ConnectionEngine::silent() const {
  std::vector<int32_t> peers;
  for (const PeerQueues& queues : queues_) {
    if (queues.in == nullptr || queues.in->received > 0) continue;
    // A message that waits for its turn to be combined may be unread in the socket.
    if (!queues.connection->has_unread()) peers.push_back(queues.peer);
  }
  return peers;
}

void ConnectionEngine::abort() {
  aborted_.store(true, std::memory_order_release);
  for (const PeerQueues& queues : queues_) queues.connection->shut_down();
}

}  // namespace db::gloo_cpu
