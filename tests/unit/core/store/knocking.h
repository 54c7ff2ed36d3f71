// How a stranger approaches a store: a connection that is started without waiting. Plain function;
// may be called between fork() and exec().
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/file_descriptor.h"
#include "store/link.h"

namespace coupler::store {

struct StoreAddress {
  std::string host;  // in StoreServer's notation
  int port = 0;
};

// errno is 0, EINPROGRESS, EAGAIN if the listener's queue is full, or the error.
inline UniqueFd connect_without_waiting(const StoreAddress& store) {
  sockaddr_in tcp{};
  tcp.sin_family = AF_INET;
  tcp.sin_port = htons(static_cast<uint16_t>(store.port));
  ::inet_pton(AF_INET, store.host.c_str(), &tcp.sin_addr);
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  std::strncpy(local.sun_path, store.host.c_str(), sizeof local.sun_path - 1);
  const bool is_unix = is_local(store.host);
  UniqueFd fd(::socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  errno = 0;
  ::connect(
      fd.get(),
      is_unix ? reinterpret_cast<const sockaddr*>(&local) : reinterpret_cast<const sockaddr*>(&tcp),
      is_unix ? sizeof local : sizeof tcp);
  return fd;
}

}  // namespace coupler::store
