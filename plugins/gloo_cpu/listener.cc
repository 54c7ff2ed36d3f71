#include "listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace db::gloo_cpu {
namespace {

constexpr int kStreamSocket = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 4096;  // the kernel takes less if net.core.somaxconn is less
// In one call: faster than they can come, and then those who are being greeted get their turn.
constexpr int kTurnedAwayAtOnce = 1024;

Descriptor listen_on(Address* address) {
  Descriptor fd(socket(address->family(), kStreamSocket, 0));
  if (!fd || bind(fd.get(), address->raw(), address->size) != 0 || listen(fd.get(), kBacklog) != 0)
    return {};
  *address = local_address(fd.get());
  return fd;
}

std::string random_name() {
  const Bytes32 bytes = random_bytes32();
  std::string name = "coupler-gloo_cpu-";
  for (size_t i = 0; i < 16; ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", bytes[i]);
    name += digits.data();
  }
  return name;
}

}  // namespace

Failure Listener::open(const std::string& interface_or_address, Listener* result) {
  Listener listener;
  listener.endpoint_.id = random_bytes32();
  listener.endpoint_.machine = machine_identity();
  listener.endpoint_.unix_name = random_name();
  Address local = Address::unix_name(listener.endpoint_.unix_name);
  listener.sockets_.push_back(listen_on(&local));
  if (!listener.sockets_.back()) {
    const int error = errno;
    return Failure::make(
        DB_ERR_SYSTEM,
        std::string("gloo_cpu cannot listen on a Unix socket: ") + std::strerror(error), 0, -1,
        error);
  }
  if (!interface_or_address.empty()) {
    std::optional<Address> address = resolve_interface(interface_or_address);
    std::string problem = "this machine has no such interface";
    if (address) {
      listener.sockets_.push_back(listen_on(&*address));
      if (listener.sockets_.back()) {
        listener.endpoint_.network = address->text();
        problem.clear();
      } else {
        problem = std::strerror(errno);
      }
    }
    if (!problem.empty()) {
      return Failure::make(
          DB_ERR_INVALID_ARGUMENT,
          "gloo_cpu cannot listen on '" + interface_or_address + "': " + problem +
              "; give the name or an address of an interface of this machine (see `ip address`)");
    }
  }
  *result = std::move(listener);
  return {};
}

Descriptor Listener::accept(size_t index) {
  for (int i = 0; i < kTurnedAwayAtOnce; ++i) {
    Descriptor fd(accept4(sockets_[index].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd || index > 0 || is_same_user(fd.get())) return fd;
  }
  errno = EAGAIN;
  return {};
}

bool is_same_user(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == geteuid();
}

}  // namespace db::gloo_cpu
