#include "base/socket.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/network.h"

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;

bool wait_ready(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) {
      return true;
    }
    if (ready == 0 && Clock::now() >= deadline) {
      return false;
    }
    if (ready < 0 && errno != EINTR) {
      throw Error(ErrorCode::kInternal, fmt::format("poll failed: {}", std::strerror(errno)));
    }
  }
}

// One attempt; 0 or errno.
int try_connect(const addrinfo& address, Deadline deadline, UniqueFd& out) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return errno;
  }
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      return errno;
    }
    if (!wait_ready(fd.get(), POLLOUT, deadline)) {
      return ETIMEDOUT;
    }
    int status = 0;
    socklen_t size = sizeof status;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &size);
    if (status != 0) {
      return status;
    }
  }
  // Requests are small and each waits for its reply: send at once.
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  out = std::move(fd);
  return 0;
}

}  // namespace

Deadline deadline_after(std::chrono::nanoseconds timeout) {
  return Clock::now() + std::clamp<std::chrono::nanoseconds>(timeout, std::chrono::nanoseconds(0),
                                                             std::chrono::hours(24 * 30));
}

int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

UniqueFd connect_tcp(const std::string& host, int port, Deadline deadline, bool retry) {
  const auto found = look_up_host(host, port, deadline, retry);
  if (!found.list) {
    throw Error(ErrorCode::kPeerLost,
                fmt::format("cannot resolve the address {} of the job's store: {}",
                            address_text(host, port), found.failure),
                {.subject = host, .hint = "check the host name"});
  }
  auto pause = std::chrono::milliseconds(2);
  while (true) {
    int failure = ETIMEDOUT;
    for (const addrinfo* a = found.list.get(); a != nullptr; a = a->ai_next) {
      UniqueFd fd;
      failure = try_connect(*a, deadline, fd);
      if (failure == 0) {
        return fd;
      }
    }
    const bool late = Clock::now() + pause >= deadline;
    if (!retry || late || failure != ECONNREFUSED) {
      throw Error(late || failure == ETIMEDOUT ? ErrorCode::kTimeout : ErrorCode::kPeerLost,
                  fmt::format("cannot connect to the job's store at {}: {}",
                              address_text(host, port), std::generic_category().message(failure)),
                  {.subject = address_text(host, port),
                   .hint = "the process that hosts the store (the launcher, or rank 0) may have "
                           "ended: look at its messages"});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  }
}

IoResult send_all(int fd, const void* data, size_t size, Deadline deadline) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLOUT, deadline)) {
        return IoResult::kTimeout;
      }
    } else if (errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kOk;
}

IoResult receive_some(int fd, void* data, size_t size, Deadline deadline, size_t& got) {
  while (true) {
    const ssize_t result = ::recv(fd, data, size, MSG_DONTWAIT);
    if (result > 0) {
      got = static_cast<size_t>(result);
      return IoResult::kOk;
    }
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_ready(fd, POLLIN, deadline)) {
        return IoResult::kTimeout;
      }
    } else if (result == 0 || errno != EINTR) {
      return IoResult::kClosed;
    }
  }
}

IoResult receive_all(int fd, void* data, size_t size, Deadline deadline) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    size_t got = 0;
    if (const auto result = receive_some(fd, bytes, size, deadline, got); result != IoResult::kOk) {
      return result;
    }
    bytes += got;
    size -= got;
  }
  return IoResult::kOk;
}

}  // namespace coupler
