#include "gloo_cpu/gloo_transport.h"

#include <gloo/common/error.h>

#include <chrono>
#include <string>

namespace db::gloo_cpu {
namespace {

using std::chrono::milliseconds;

// A slot holds the kind of collective in its top byte, a tag, and the part of the collective in its
// lowest byte. Header::sequence identifies the operation, so the tag stays 0.
uint32_t round_of(uint64_t slot) { return static_cast<uint32_t>(slot >> 32 | slot); }

[[noreturn]] void refuse(const std::string& what) {
  throw gloo::InvalidOperationException("gloo_cpu's transport " + what);
}

class Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(GlooTransport* transport, void* data, size_t bytes)
      : UnboundBuffer(data, bytes), transport_(transport) {}

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    const Part part = part_at(offset, bytes);
    sends_.push_back(transport_->send(to, slot, part.data, part.bytes));
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    const Part part = part_at(offset, bytes);
    receives_.push_back(transport_->receive(from, slot, part.data, part.bytes));
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    refuse("does not support receiving from one of several ranks");
  }

  bool waitSend(int* to, milliseconds) override { return finish_first(&sends_, to); }
  bool waitRecv(int* from, milliseconds) override { return finish_first(&receives_, from); }
  void abortWaitSend() override { refuse("ends waits only by aborting the communicator"); }
  void abortWaitRecv() override { refuse("ends waits only by aborting the communicator"); }

 private:
  struct Part {
    uint8_t* data;
    size_t bytes;
  };

  Part part_at(size_t offset, size_t bytes) const {
    if (bytes == kUnspecifiedByteCount && offset <= size) bytes = size - offset;
    if (offset > size || bytes > size - offset) {
      refuse("was given " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
             " of a buffer of size " + std::to_string(size));
    }
    return {static_cast<uint8_t*>(ptr) + offset, bytes};
  }

  bool finish_first(std::vector<Message*>* posted, int* peer) {
    if (posted->empty()) refuse("cannot wait for a message that was not posted");
    Message* const message = posted->front();
    posted->erase(posted->begin());
    const int32_t other = transport_->finish(message);
    if (peer != nullptr) *peer = other;
    return true;
  }

  GlooTransport* const transport_;
  std::vector<Message*> sends_, receives_;  // first posted, first waited for
};

// A connected peer. Collectives only check that it exists; they use buffers.
class Peer final : public gloo::transport::Pair {
 public:
  explicit Peer(int rank) : rank_(rank) {}

  void send(gloo::transport::UnboundBuffer* buffer, uint64_t slot, size_t offset,
            size_t bytes) override {
    buffer->send(rank_, slot, offset, bytes);
  }
  void recv(gloo::transport::UnboundBuffer* buffer, uint64_t slot, size_t offset,
            size_t bytes) override {
    buffer->recv(rank_, slot, offset, bytes);
  }

  const gloo::transport::Address& address() const override { refuse(kConnected); }
  void connect(const std::vector<char>&) override { refuse(kConnected); }
  void close() override { refuse(kConnected); }
  void setSync(bool, bool) override { refuse(kConnected); }
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override {
    refuse(kUnbound);
  }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override {
    refuse(kUnbound);
  }

 private:
  static constexpr char kConnected[] = "is already connected by the communicator";
  static constexpr char kUnbound[] = "supports only unbound buffers";

  const int rank_;
};

}  // namespace

GlooTransport::GlooTransport(int32_t own_rank, int32_t ranks, ConnectionEngine* engine)
    : Context(own_rank, ranks), engine_(engine), received_from_(static_cast<size_t>(ranks)) {
  for (int32_t peer = 0; peer < size; ++peer)
    if (peer != rank) createPair(peer);
}

void GlooTransport::begin(const Header& header, int64_t deadline_ns, int64_t spin_ns) {
  header_ = header;
  deadline_ns_ = deadline_ns;
  spin_ns_ = spin_ns;
  received_from_.assign(received_from_.size(), false);
}

std::vector<int32_t> GlooTransport::received_from() const {
  std::vector<int32_t> ranks;
  for (size_t peer = 0; peer < received_from_.size(); ++peer)
    if (received_from_[peer]) ranks.push_back(static_cast<int32_t>(peer));
  return ranks;
}

Message* GlooTransport::take(int32_t peer) {
  if (getPair(peer) == nullptr) refuse("has no connection to rank " + std::to_string(peer));
  Message* const message = messages_.take();
  message->peer = peer;
  return message;
}

Header GlooTransport::header_at(uint64_t slot, uint64_t bytes) const {
  Header header = header_;
  header.round = round_of(slot);
  header.bytes = bytes;
  return header;
}

Message* GlooTransport::send(int32_t peer, uint64_t slot, const uint8_t* data, uint64_t bytes) {
  Message* const message = take(peer);
  engine_->send(peer, header_at(slot, bytes), data, &message->group, &message->out);
  return message;
}

Message* GlooTransport::receive(int32_t peer, uint64_t slot, uint8_t* data, uint64_t bytes) {
  Message* const message = take(peer);
  engine_->receive(peer, header_at(slot, bytes), data, &message->group, &message->in);
  return message;
}

int32_t GlooTransport::finish(Message* message) {
  if (message->group.pending > 0) {
    Failure failure = engine_->wait(message->group, deadline_ns_, spin_ns_);
    if (!failure.ok()) throw EngineFailed(std::move(failure));
  }
  const int32_t peer = message->peer;
  if (message->in.group != nullptr) received_from_[static_cast<size_t>(peer)] = true;
  messages_.give_back(message);
  return peer;
}

std::unique_ptr<gloo::transport::Pair>& GlooTransport::createPair(int peer) {
  std::unique_ptr<gloo::transport::Pair>& pair = pairs_.at(static_cast<size_t>(peer));
  pair = std::make_unique<Peer>(peer);
  return pair;
}

std::unique_ptr<gloo::transport::UnboundBuffer> GlooTransport::createUnboundBuffer(void* data,
                                                                                   size_t bytes) {
  return std::make_unique<Buffer>(this, data, bytes);
}

}  // namespace db::gloo_cpu
