#include "gloo_cpu/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "gloo_cpu/endpoint.h"

namespace db::gloo_cpu {
namespace {

// With a Unix socket's default buffer both ends take turns too often; measured, a larger buffer
// than this gains nothing. The kernel uses less if net.core.wmem_max is smaller.
constexpr int kUnixSendBuffer = 1 << 20;

// Every setting only makes a connection faster and none is required, so results are ignored.
void tune(int fd) {
  const Address peer = peer_address(fd);
  if (local_address(fd).family() == AF_UNIX) {
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixSendBuffer, sizeof kUnixSendBuffer);
    return;
  }
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Loopback has no congestion to control; a pacing algorithm (bbr, the default on some servers)
  // only costs timers there. "reno" is part of every kernel and available to every user.
  static constexpr char kName[] = "reno";
  if (peer.family() == AF_INET &&
      (ntohl(reinterpret_cast<const sockaddr_in&>(peer.storage).sin_addr.s_addr) >> 24) == 127) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kName, sizeof kName - 1);
  }
}

// Calls move(data, size) for one part after another, as long as each is moved completely.
template <class Move>
int64_t move_parts(const iovec* parts, size_t count, const Move& move) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    auto* data = static_cast<uint8_t*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0) {
      const int64_t moved = move(data, left);
      if (moved <= 0) return total > 0 ? total : moved;
      total += moved;
      data += moved;
      left -= static_cast<size_t>(moved);
    }
  }
  return total;
}

}  // namespace

Connection::Connection(Descriptor fd) : fd_(std::move(fd)) { tune(fd_.get()); }

Connection::Connection(Descriptor fd, const Tls& tls, const Bytes32& key, bool connects)
    : Connection(std::move(fd)) {
  tls_ = std::make_unique<TlsStream>(tls, key, fd_.get(), connects);
}

int64_t Connection::send(const iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return move_parts(parts, count,
                      [&](uint8_t* data, size_t size) { return tls_->send(data, size); });
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int64_t Connection::receive(const iovec* parts, size_t count) {
  if (tls_ != nullptr) {
    return move_parts(parts, count,
                      [&](uint8_t* data, size_t size) { return tls_->receive(data, size); });
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return recvmsg(fd_.get(), &message, MSG_DONTWAIT);
}

bool Connection::has_unread() const {
  if (tls_ != nullptr && tls_->has_unread()) return true;
  char byte = 0;
  return recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void Connection::shut_down() { (void)shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace db::gloo_cpu
