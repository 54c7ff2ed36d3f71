// Handshake: how the two ends of a new connection prove to each other which ranks they are, before
// any other byte is accepted.
//
//   connecting end              accepting end
//   Hello: rank, size, nonce ->
//                            <- Answer: size, nonce, HMAC(key, "accepts" | transcript)
//   Proof: HMAC(key, "connects" | transcript) ->
//                            <- Welcome
//
// The transcript holds the listener's id (random, known only through the store), both ranks, sizes,
// protection modes and nonces, and the addresses and ports of both ends as each of them sees them:
// relaying the messages from another connection changes those. The following traffic is protected
// under a key derived in the same way, so that two connections cannot be swapped. The key comes
// from the job's secret and is never sent. Between processes of one machine, the kernel has already
// identified the other end's user (is_same_user). Thread rule: one thread. Never blocks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/local_socket.h"

namespace db {

struct HandshakeSelf {
  const char* backend = "";  // its name, a part of the transcript
  Bytes32 key{};  // all zero if the job has no secret: then only the listener's id is proved
  int32_t rank = 0;
  int32_t size = 1;
  uint32_t mode = 0;  // what else both ends must agree on, in the backend's own numbers
};

class Handshake {
 public:
  enum class State { kUnderWay, kDone, kFailed };

  // fd: a non-blocking socket that connects or is connected to the listener of `peer`.
  static Handshake connect(const HandshakeSelf& self, Descriptor fd, int32_t peer,
                           const Bytes32& listener_id);
  // fd: accepted by this rank's own listener, from any process.
  static Handshake accept(const HandshakeSelf& self, Descriptor fd, const Bytes32& listener_id);

  // Proceeds as far as the socket allows.
  State advance();

  short events() const;  // the events to poll the socket for
  int fd() const { return fd_.get(); }
  int32_t peer() const { return peer_; }  // -1: not known yet
  bool connects() const { return connects_; }

  // After kDone: a key that only the two ends of this connection have.
  Bytes32 session_key() const { return keyed_hash("protects"); }
  // After kDone: what the other end says about the job. The caller compares.
  int32_t peer_size() const { return peer_size_; }
  uint32_t peer_mode() const { return peer_mode_; }
  Descriptor release() { return std::move(fd_); }

  // After kFailed.
  const std::string& problem() const { return problem_; }
  bool is_refused() const { return refused_; }  // nothing listens at the address

 private:
  enum class Step { kConnecting, kHello, kAnswer, kProof, kWelcome, kDone };  // the next to arrive

  Handshake(const HandshakeSelf& self, Descriptor fd, bool connects, int32_t peer,
            const Bytes32& listener_id);

  State step();
  State fail(const std::string& problem);
  bool take(void* message, size_t size);  // false: not completely received yet
  void put(const void* message, size_t size);
  Bytes32 keyed_hash(const char* purpose) const;

  HandshakeSelf self_;
  Descriptor fd_;
  bool connects_;
  int32_t peer_;
  Bytes32 listener_id_;
  Step step_;
  Bytes32 own_nonce_;
  Bytes32 peer_nonce_{};
  int32_t peer_size_ = 0;
  uint32_t peer_mode_ = 0;
  std::string in_, out_;
  bool refused_ = false;
  std::string problem_;
};

}  // namespace db
