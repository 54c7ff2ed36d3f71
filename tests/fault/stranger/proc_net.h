// ProcNet: the sockets that any user of a machine sees in /proc. One thread.
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
  std::string key() const {  // the same for equal endpoints
    return {reinterpret_cast<const char*>(&address), size};
  }

  static Endpoint unix_name(const std::string& name);  // abstract; without the zero byte
  static Endpoint unix_path(const std::string& path);
};

class ProcNet {
 public:
  // Reads the network namespace that the calling process has now.
  ProcNet();
  ~ProcNet();
  ProcNet(const ProcNet&) = delete;
  ProcNet& operator=(const ProcNet&) = delete;

  // Listening TCP sockets, except those of user `but_for`, and listening Unix sockets; and possible
  // sockets among the open files of this process's siblings.
  std::vector<Endpoint> look(uid_t but_for);

 private:
  std::string read(size_t index);

  std::array<int, 4> files_{};
};

}  // namespace backend_test
