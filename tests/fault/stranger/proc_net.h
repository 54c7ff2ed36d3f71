// ProcNet: what any user of a machine sees of its sockets in /proc. One thread.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <string>
#include <vector>

namespace backend_test {

// A socket's address: TCP over IPv4 or IPv6, an abstract Unix name, or a path.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  int family() const { return address.ss_family; }
  bool is_unix() const { return family() == AF_UNIX; }
  bool is_path() const { return is_unix() && raw()->sa_data[0] != 0; }
  std::string key() const {  // equal for equal endpoints
    return {reinterpret_cast<const char*>(&address), size};
  }

  static Endpoint unix_name(const std::string& name);  // abstract, without its zero byte
  static Endpoint unix_path(const std::string& path);
};

class ProcNet {
 public:
  // Of the calling process' network namespace, from now on.
  ProcNet();
  ~ProcNet();
  ProcNet(const ProcNet&) = delete;
  ProcNet& operator=(const ProcNet&) = delete;

  // Who listens on TCP, but for the sockets of one user, or on a Unix socket; and what might be a
  // socket among the open files of the processes that have this one's parent.
  std::vector<Endpoint> look(uid_t but_for);

 private:
  std::string read(size_t index);

  std::array<int, 4> files_{};
};

}  // namespace backend_test
