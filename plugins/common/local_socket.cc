#include "common/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

namespace db {
namespace {

constexpr int kStreamSocket = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 4096;  // the kernel takes less if net.core.somaxconn is less

std::string random_name(const char* backend) {
  return std::string("coupler-") + backend + "-" + to_hex(random_bytes32()).substr(0, 32);
}

// A listening socket in the folder, and its file, which is unlinked; on failure see errno.
Descriptor listen_in(const char* backend, const std::string& folder, Descriptor* file) {
  const std::string path = folder + "/" + random_name(backend);
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

}  // namespace

std::string to_hex(const Bytes32& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(const std::string& text, Bytes32* bytes) {
  if (text.size() != 2 * bytes->size()) return false;
  for (size_t i = 0; i < bytes->size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, (*bytes)[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  return true;
}

Bytes32 random_bytes32() {
  Bytes32 bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return bytes;
}

std::string Address::text() const {
  std::array<char, INET6_ADDRSTRLEN> number{};
  switch (storage.ss_family) {
    case AF_INET: {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
      (void)inet_ntop(AF_INET, &v4.sin_addr, number.data(), number.size());
      return std::string(number.data()) + ":" + std::to_string(ntohs(v4.sin_port));
    }
    case AF_INET6: {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
      (void)inet_ntop(AF_INET6, &v6.sin6_addr, number.data(), number.size());
      return "[" + std::string(number.data()) + "]:" + std::to_string(ntohs(v6.sin6_port));
    }
    case AF_UNIX: {
      const size_t length = size - std::min<size_t>(size, offsetof(sockaddr_un, sun_path));
      const char* const path = reinterpret_cast<const sockaddr_un&>(storage).sun_path;
      return std::string(path, strnlen(path, length));
    }
    default:
      return "";
  }
}

std::optional<Address> Address::unix_path(const std::string& path) {
  Address address;
  auto* const local = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.size() >= sizeof local->sun_path) return std::nullopt;
  local->sun_family = AF_UNIX;
  std::memcpy(local->sun_path, path.c_str(), path.size() + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

Address local_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (getsockname(fd, address.raw(), &address.size) != 0) address = {};
  return address;
}

Address peer_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (getpeername(fd, address.raw(), &address.size) != 0) address = {};
  return address;
}

std::string machine_identity() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  for (const char* space : {"net", "pid", "user"}) {
    std::array<char, 64> number{};
    const std::string link = std::string("/proc/self/ns/") + space;
    (void)!readlink(link.c_str(), number.data(), number.size() - 1);
    identity += std::string("/") + number.data();
  }
  return identity;
}

// The file exists only for a moment; takes the first folder that works.
Descriptor listen_locally(const char* backend, Descriptor* file) {
  const std::array<const char*, 4> folders = {"/dev/shm", secure_getenv("XDG_RUNTIME_DIR"),
                                              secure_getenv("TMPDIR"), "/tmp"};
  Descriptor fd;
  for (const char* const folder : folders)
    if (!fd && folder != nullptr && *folder != 0) fd = listen_in(backend, folder, file);
  return fd;
}

Descriptor listen_abstractly(const char* backend, std::string* name) {
  *name = std::string(1, '\0') + random_name(backend);
  const std::optional<Address> address = Address::unix_path(*name);
  Descriptor fd(socket(AF_UNIX, kStreamSocket, 0));
  if (!fd || bind(fd.get(), address->raw(), address->size) != 0 || listen(fd.get(), kBacklog) != 0)
    return {};
  return fd;
}

bool is_same_user(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == geteuid();
}

}  // namespace db
