#include "socket_pair.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace db::gloo_cpu {
namespace {

// On loopback there is no congestion to control; a pacing algorithm (bbr, the system's default on
// some servers) only costs timers there. "reno" is part of every kernel and open to every user;
// where it is refused the connection works as well, so the result is not looked at.
void tune(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return;
  const bool loopback =
      peer.ss_family == AF_INET &&
      (ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24) == 127;
  if (!loopback) return;
  static constexpr char kName[] = "reno";
  (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kName, sizeof kName - 1);
}

}  // namespace

int SocketPair::take_over() {
  setSync(true, false);
  std::lock_guard<std::mutex> lock(m_);
  throwIfException();
  // Programs that a rank starts must not keep its connections open after its death.
  if (fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl(FD_CLOEXEC)");
  }
  tune(fd_);
  return fd_;
}

void SocketPair::waitUntilConnected(std::unique_lock<std::mutex>& lock, bool) {
  const auto connected = [this] {
    throwIfException();
    return state_ >= CONNECTED;
  };
  if (!cv_.wait_until(lock, deadline_, connected)) {
    signalAndThrowException("the deadline passed while waiting for the connection");
  }
}

void SocketPair::handleReadWrite(int) {}

SocketContext::SocketContext(std::shared_ptr<gloo::transport::tcp::Device> device, int own_rank,
                             int ranks)
    : gloo::transport::tcp::Context(std::move(device), own_rank, ranks) {}

std::unique_ptr<gloo::transport::Pair>& SocketContext::createPair(int peer) {
  pairs_[static_cast<size_t>(peer)] =
      std::make_unique<SocketPair>(this, device_.get(), peer, getTimeout());
  return pairs_[static_cast<size_t>(peer)];
}

SocketPair& SocketContext::pair(int peer) {
  return static_cast<SocketPair&>(*pairs_[static_cast<size_t>(peer)]);
}

}  // namespace db::gloo_cpu
