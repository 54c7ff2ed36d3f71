#include "shm/message_engine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/futex.h"
#include "shm/copy.h"

namespace db::shm {
namespace {

constexpr int64_t kBellSliceNs = 50'000'000;  // a sleeping rank looks this often after its peer

// The next free or filled bytes of a ring of `size` bytes, at most `available`, up to its end.
uint64_t contiguous(uint32_t position, uint64_t available, uint64_t size) {
  return std::min<uint64_t>(available, size - position % size);
}

}  // namespace

MessageEngine::MessageEngine(int32_t rank, Segment* segment, Peers* peers,
                             Synchronizer* synchronizer)
    : rank_(rank),
      size_(segment->layout().ranks),
      segment_(segment),
      peers_(peers),
      synchronizer_(synchronizer),
      outgoing_(static_cast<size_t>(size_)),
      incoming_(static_cast<size_t>(size_)) {}

MessageEngine::Message* MessageEngine::take() {
  if (free_.empty()) free_.push_back(&all_.emplace_back());
  Message* const message = free_.back();
  free_.pop_back();
  *message = {};
  return message;
}

Failure MessageEngine::start(Op& op) {
  Message* const message = take();
  message->peer = op.root_or_peer;
  message->sends = op.kind == DB_SEND;
  message->out = static_cast<const uint8_t*>(op.send);
  message->in = static_cast<uint8_t*>(op.recv);
  const auto peer = static_cast<size_t>(op.root_or_peer);
  Direction& direction = message->sends ? outgoing_[peer] : incoming_[peer];
  message->header = {static_cast<uint64_t>(op.dtype) | static_cast<uint64_t>(op.tag) << 32,
                     op.count, op.count * op.element, ++direction.started};
  (direction.first == nullptr ? direction.first : direction.last->next) = message;
  direction.last = message;
  ++pending_;
  op.native = message;
  if (!op.blocking) return poll(op);
  return conclude(op, wait(op, message));
}

Failure MessageEngine::poll(Op& op) {
  auto* const message = static_cast<Message*>(op.native);
  (void)move_all();
  if (message->done) return conclude(op, message->failure);
  const int64_t now = now_ns();
  const bool asks = now - message->asked_ns >= kBellSliceNs;
  if (asks) message->asked_ns = now;
  Failure failure = synchronizer_->interruption(op, message->peer, asks);
  if (failure.ok()) return {DB_IN_PROGRESS};
  (void)move_all();  // what the peer did before it left
  return conclude(op, message->done ? message->failure : failure);
}

Failure MessageEngine::wait(const Op& op, Message* message) {
  Control& own = segment_->control(rank_);
  const int64_t spin = synchronizer_->spin_ns(op);
  int64_t idle_since = 0;
  bool slept = false;
  while (true) {
    const bool moved = move_all();
    if (message->done) return message->failure;
    if (moved) {
      idle_since = 0;
      continue;
    }
    const int64_t now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < spin && !synchronizer_->is_aborted()) {
      cpu_pause();
      continue;
    }
    const uint32_t seen = own.bell.load(std::memory_order_seq_cst);
    own.listening.store(1, std::memory_order_seq_cst);
    if (!move_all()) {
      Failure failure = synchronizer_->interruption(op, message->peer, slept);
      if (!failure.ok() && !move_all()) {
        own.listening.store(0, std::memory_order_relaxed);
        return failure;
      }
      futex_wait(&own.bell, seen, std::clamp<int64_t>(op.deadline_ns - now, 0, kBellSliceNs));
      slept = slept || now_ns() - now >= kBellSliceNs / 2;
    }
    own.listening.store(0, std::memory_order_relaxed);
  }
}

Failure MessageEngine::conclude(Op& op, Failure result) {
  auto* const message = static_cast<Message*>(op.native);
  op.native = nullptr;
  if (result.ok()) free_.push_back(message);
  if (result.status != DB_ERR_TIMEOUT) return result;
  const int32_t peer = op.root_or_peer;
  result.message = describe(op) + " did not complete within " +
                   std::to_string(op.timeout_ns / 1'000'000) + " ms: rank " + std::to_string(peer) +
                   peers_->state_of(peer) + " did not take part in time";
  return result;
}

bool MessageEngine::move_all() {
  bool moved = false;
  for (int32_t peer = 0; peer < size_ && pending_ > 0; ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (outgoing_[at].first != nullptr) moved = push(peer) || moved;
    if (incoming_[at].first != nullptr) moved = pull(peer) || moved;
  }
  return moved;
}

void MessageEngine::finish(Direction& direction) {
  Message* const message = direction.first;
  direction.first = message->next;
  message->done = true;
  --pending_;
}

void MessageEngine::ring_bell(int32_t peer) const {
  // The ring's position was stored with memory_order_seq_cst, and the peer announces that it
  // listens before it looks at the ring again.
  Control& control = segment_->control(peer);
  if (control.listening.load(std::memory_order_seq_cst) == 0) return;
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&control.bell);
}

bool MessageEngine::push(int32_t peer) {
  Direction& direction = outgoing_[static_cast<size_t>(peer)];
  Ring& ring = segment_->ring(rank_, peer);
  bool moved = false;
  while (direction.first != nullptr) {
    Message& message = *direction.first;
    const uint64_t bytes = fill(ring, message);
    message.moved += bytes;
    moved = moved || bytes > 0;
    if (message.moved == sizeof(Header) + message.header.bytes) {
      finish(direction);
    } else if (bytes == 0) {
      break;
    }
  }
  return moved;
}

// Moves the next piece of message into the ring: at most a quarter of it, so that the receiver can
// begin while the sender goes on.
uint64_t MessageEngine::fill(Ring& ring, Message& message) {
  const uint64_t size = segment_->layout().ring_bytes;
  const uint32_t written = ring.written.load(std::memory_order_relaxed);
  const uint64_t used = written - ring.read.load(std::memory_order_acquire);
  const uint64_t room = std::min(contiguous(written, size - used, size), size / 4);
  const bool in_header = message.moved < sizeof(Header);
  const uint8_t* const from =
      in_header ? reinterpret_cast<const uint8_t*>(&message.header) + message.moved
                : message.out + (message.moved - sizeof(Header));
  const uint64_t left =
      (in_header ? sizeof(Header) : sizeof(Header) + message.header.bytes) - message.moved;
  const uint64_t bytes = std::min(left, room);
  if (bytes == 0) return 0;
  copy(ring.data + written % size, from, bytes);
  ring.written.store(written + static_cast<uint32_t>(bytes), std::memory_order_seq_cst);
  ring_bell(message.peer);
  return bytes;
}

bool MessageEngine::pull(int32_t peer) {
  Direction& direction = incoming_[static_cast<size_t>(peer)];
  Ring& ring = segment_->ring(peer, rank_);
  bool moved = false;
  while (direction.first != nullptr) {
    Message& message = *direction.first;
    const uint64_t bytes = drain(ring, message);
    message.moved += bytes;
    moved = moved || bytes > 0;
    if (message.moved == sizeof(Header) && !(message.received == message.header)) {
      message.failure = disagrees(message);
      finish(direction);
      break;  // what follows in the ring belongs to no message
    }
    if (message.moved == sizeof(Header) + message.header.bytes) {
      finish(direction);
    } else if (bytes == 0) {
      break;
    }
  }
  return moved;
}

uint64_t MessageEngine::drain(Ring& ring, Message& message) {
  const uint64_t size = segment_->layout().ring_bytes;
  const uint32_t read = ring.read.load(std::memory_order_relaxed);
  const uint64_t filled = ring.written.load(std::memory_order_acquire) - read;
  const bool in_header = message.moved < sizeof(Header);
  uint8_t* const to = in_header ? reinterpret_cast<uint8_t*>(&message.received) + message.moved
                                : message.in + (message.moved - sizeof(Header));
  const uint64_t left =
      (in_header ? sizeof(Header) : sizeof(Header) + message.header.bytes) - message.moved;
  const uint64_t bytes = std::min(left, contiguous(read, filled, size));
  if (bytes == 0) return 0;
  copy(to, ring.data + read % size, bytes);
  ring.read.store(read + static_cast<uint32_t>(bytes), std::memory_order_seq_cst);
  ring_bell(message.peer);
  return bytes;
}

std::string MessageEngine::describe_header(const Header& header) {
  return std::to_string(header.count) + " " +
         dtype_name(static_cast<db_dtype>(header.kind & 0xff)) + " with tag " +
         std::to_string(header.kind >> 32);
}

Failure MessageEngine::disagrees(const Message& message) const {
  const std::string sender = "rank " + std::to_string(message.peer);
  return Failure::make(DB_ERR_MISMATCH,
                       "message " + std::to_string(message.header.sequence) + " from " + sender +
                           " to rank " + std::to_string(rank_) + ": " + sender + " sent " +
                           describe_header(message.received) + ", but the receiver expects " +
                           describe_header(message.header) +
                           "; both must start the same messages in the same order",
                       DB_ERROR_COMM_DEAD, message.peer);
}

}  // namespace db::shm
