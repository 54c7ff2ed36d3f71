// Connection: an authenticated connection to one other rank: a socket, inside TLS if requested.
// Thread rule: one thread at a time; shut_down() from any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gloo_cpu/endpoint.h"
#include "gloo_cpu/tls.h"

namespace db::gloo_cpu {

class Connection {
 public:
  // fd: connected, non-blocking.
  explicit Connection(Descriptor fd);
  // The same inside TLS, whose handshake must run first.
  Connection(Descriptor fd, const Tls& tls, const Bytes32& key, bool connects);

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
