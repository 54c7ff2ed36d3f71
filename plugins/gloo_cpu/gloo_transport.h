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
#include <shared_mutex>
#include <string>
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

// BootstrapStore: the host's key-value store as this backend uses it. A communicator made by split
// shares its ancestor's store under its own prefix. Once that ancestor is destroyed, the host's
// functions must not be called, and every call here returns DB_ERR_ABORTED instead.
// Thread rule: any thread.
class BootstrapStore {
 public:
  explicit BootstrapStore(const db_store* store) : shared_(std::make_shared<Shared>(store)) {}

  // The same store, with keys that start with prefix + "/".
  BootstrapStore with_prefix(const std::string& prefix) const;

  Failure set(const std::string& key, const std::string& value) const;
  // timeout_ns 0: a single attempt.
  Failure get(const std::string& key, int64_t timeout_ns, std::string* value) const;
  Failure add(const std::string& key, int64_t delta, int64_t* result) const;

  // 32 bytes that only processes of this job can compute. *found: whether the job has a secret; if
  // not, key is not modified.
  Failure derive_key(const char* purpose, uint8_t key[32], bool* found) const;

  // No call reaches the host afterwards; waits for calls in flight. Called by the communicator that
  // was given the store, when it is destroyed.
  void close() const;

 private:
  template <class Body>
  Failure call(const std::string& key, const Body& body) const;

  struct Shared {
    explicit Shared(const db_store* given) : store(given) {}
    std::shared_mutex mutex;
    const db_store* store;  // NULL: closed
  };

  std::shared_ptr<Shared> shared_;
  std::string prefix_;
};

}  // namespace db::gloo_cpu
