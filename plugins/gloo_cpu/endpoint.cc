#include "gloo_cpu/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace db::gloo_cpu {
namespace {

constexpr const char* kFormat = "gloo_cpu/2";  // first word of an announcement

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

// A numeric address; port 0.
std::optional<Address> parse_number(const std::string& text) {
  Address address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    address.size = sizeof *v4;
    return address;
  }
  address = {};
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    address.size = sizeof *v6;
    return address;
  }
  return std::nullopt;
}

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

std::string random_name() { return "coupler-gloo_cpu-" + to_hex(random_bytes32()).substr(0, 32); }

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

std::optional<Address> Address::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  std::optional<Address> address = parse_number(host);
  if (error != std::errc() || stop != end || !address) return std::nullopt;
  if (address->family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address->storage).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(address->storage).sin6_port = htons(port);
  }
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

std::optional<Address> resolve_interface(const std::string& interface_or_address) {
  if (auto number = parse_number(interface_or_address)) return number;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  std::optional<Address> found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || interface_or_address != one->ifa_name) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && (family != AF_INET6 || found)) continue;
    found.emplace();
    found->size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&found->storage, one->ifa_addr, found->size);
    if (family == AF_INET) break;
  }
  return found;
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

std::string Endpoint::encode() const {
  std::ostringstream text;
  text << kFormat << ' ' << size << ' ' << to_hex(id) << ' ' << machine << ' ' << unix_path << ' '
       << network;
  return text.str();
}

std::optional<Endpoint> Endpoint::decode(const std::string& text) {
  std::istringstream words(text);
  std::string format;
  std::string id;
  Endpoint endpoint;
  if (!(words >> format >> endpoint.size >> id >> endpoint.machine >> endpoint.unix_path) ||
      format != kFormat || !from_hex(id, &endpoint.id)) {
    return std::nullopt;
  }
  words >> endpoint.network;  // absent if the rank does not listen on a network
  return endpoint;
}

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
      return Failure::invalid(
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
