// Connection: an authenticated connection to one other rank: a socket, inside TLS if requested.
// Thread rule: one thread at a time; Connection::shut_down() from any thread.
#pragma once

#include <openssl/ssl.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/local_socket.h"

namespace db::gloo_cpu {

// How the traffic after the handshake is protected (the option "protect").
enum class Protect : uint32_t { kNone = 0, kMac = 1, kTls = 2 };

// TLS under a key that both ends hold (no certificates), for connections between machines:
//   kTls: TLS 1.3, AES-128-GCM: the traffic cannot be read or altered.
//   kMac: TLS 1.2 with the NULL cipher (RFC 5487), HMAC-SHA256 on every record: the traffic can be
//         read but not altered.

using TlsContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// The settings, made once per communicator. Throws std::runtime_error if this OpenSSL offers no
// such mode.
TlsContext make_tls_context(Protect protect);

// A non-blocking stream of protected bytes over a socket, which is borrowed and outlives it.
class TlsStream {
 public:
  TlsStream(SSL_CTX* context, const Bytes32& key, int fd, bool connects);
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  enum class State { kUnderWay, kDone, kFailed };
  State handshake();
  short events() const { return events_; }                 // the events the handshake waits for
  const std::string& problem() const { return problem_; }  // after kFailed

  // Return the bytes moved. 0: the other end has closed; -1: see errno, EAGAIN: nothing can be
  // moved now, EBADMSG: the received data is not what the other end sent.
  int64_t send(const uint8_t* data, size_t size);
  int64_t receive(uint8_t* data, size_t size);
  bool has_unread() const { return SSL_has_pending(ssl_.get()) == 1; }

 private:
  int64_t conclude(int result);

  const int fd_;  // OpenSSL keeps pointers to this and the key
  const Bytes32 key_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  short events_ = 0;
  std::string problem_;
  uint64_t sent_under_key_ = 0;
};

class Connection {
 public:
  // fd: connected, non-blocking.
  explicit Connection(Descriptor fd);
  // The same inside TLS, whose handshake must run first.
  Connection(Descriptor fd, SSL_CTX* context, const Bytes32& key, bool connects);

  int fd() const { return fd_.get(); }
  TlsStream* tls() { return tls_.get(); }  // NULL: plain

  // Move as many bytes as possible now; never block. 0: the other end has closed (receive);
  // -1: see errno, EAGAIN: none now. parts are not empty.
  int64_t send(const iovec* parts, size_t count);
  int64_t receive(const iovec* parts, size_t count);
  bool has_unread() const;

  void shut_down();

 private:
  Descriptor fd_;
  std::unique_ptr<TlsStream> tls_;
};

}  // namespace db::gloo_cpu
