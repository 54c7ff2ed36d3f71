#include "gloo_cpu/listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

namespace db::gloo_cpu {
namespace {

constexpr int kStreamSocket = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 4096;  // the kernel takes less if net.core.somaxconn is less
// Connections rejected in one call: faster than they can arrive, yet handshakes get their turn.
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

// A listening socket in the folder, and its file, which is unlinked; on failure see errno.
Descriptor listen_in(const std::string& folder, Descriptor* file) {
  const std::string path = folder + "/" + random_name();
  const std::optional<Address> address = Address::unix_path(path);
  if (!address) {
    errno = ENAMETOOLONG;
    return {};
  }
  Descriptor fd(socket(AF_UNIX, kStreamSocket, 0));
  // The file is created with the socket's mode, so other users can never connect.
  if (!fd || fchmod(fd.get(), 0600) != 0 || bind(fd.get(), address->raw(), address->size) != 0)
    return {};
  *file = Descriptor(::open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW));
  const int error = errno;
  unlink(path.c_str());
  errno = error;
  if (!*file || listen(fd.get(), kBacklog) != 0) return {};
  return fd;
}

// The file exists only for a moment; takes the first folder that works.
Descriptor listen_locally(Descriptor* file) {
  const std::array<const char*, 4> folders = {"/dev/shm", secure_getenv("XDG_RUNTIME_DIR"),
                                              secure_getenv("TMPDIR"), "/tmp"};
  Descriptor fd;
  for (const char* const folder : folders)
    if (!fd && folder != nullptr && *folder != 0) fd = listen_in(folder, file);
  return fd;
}

}  // namespace

Failure Listener::open(const std::string& interface_or_address, Listener* result) {
  Listener listener;
  listener.endpoint_.id = random_bytes32();
  listener.endpoint_.machine = machine_identity();
  listener.sockets_.push_back(listen_locally(&listener.file_));
  if (!listener.sockets_.back()) {
    const int error = errno;
    return Failure::make(DB_ERR_SYSTEM,
                         std::string("gloo_cpu cannot create a Unix socket in /dev/shm, TMPDIR or "
                                     "/tmp: ") +
                             std::strerror(error) + "; set TMPDIR to a folder you can write to",
                         0, -1, error);
  }
  listener.endpoint_.unix_path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(listener.file_.get());
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
