// GlooTransport: this backend's connections as a transport of libgloo. libgloo's collectives post
// sends and receives on unbound buffers and wait for them; here these become messages of
// ConnectionEngine. It uses no device, listener or thread of libgloo.
//
// Between two ranks, messages arrive in the order in which they were sent, and libgloo's
// collectives post receives in the order of the peer's sends. Each header carries the operation,
// the slot and the length, so ranks that disagree get the same mismatch error as other collectives.
//
// libgloo's timeouts are ignored: the operation's deadline applies.
// Thread rule: one thread at a time, that of the running collective.
#pragma once

#include <coupler/distributed_backend.h>
#include <gloo/transport/context.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "common/error.h"
#include "gloo_cpu/connection_engine.h"

namespace db::gloo_cpu {

// Carries a failure of ConnectionEngine through libgloo.
class EngineFailed final : public std::exception {
 public:
  explicit EngineFailed(Failure failure) : failure_(std::move(failure)) {}
  const char* what() const noexcept override { return failure_.message.c_str(); }
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

class GlooTransport final : public gloo::transport::Context {
 public:
  GlooTransport(int32_t own_rank, int32_t ranks, ConnectionEngine* engine);

  // Before a collective. header: of its messages, without round and bytes.
  void begin(const Header& header, int64_t deadline_ns, int64_t spin_ns);
  // The number of messages posted but not waited for.
  size_t unfinished() const { return messages_.taken(); }
  // The ranks that have sent it a message.
  std::vector<int32_t> received_from() const;

  Message* send(int32_t peer, uint64_t slot, const uint8_t* data, uint64_t bytes);
  Message* receive(int32_t peer, uint64_t slot, uint8_t* data, uint64_t bytes);
  // Waits for message, frees it and returns its peer. Throws EngineFailed.
  int32_t finish(Message* message);

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override;

 private:
  Message* take(int32_t peer);
  Header header_at(uint64_t slot, uint64_t bytes) const;

  ConnectionEngine* const engine_;
  Header header_;
  int64_t deadline_ns_ = 0;
  int64_t spin_ns_ = 0;
  MessagePool messages_;
  std::vector<bool> received_from_;  // by rank
};

}  // namespace db::gloo_cpu
