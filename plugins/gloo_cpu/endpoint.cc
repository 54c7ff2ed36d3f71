#include "gloo_cpu/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

namespace db::gloo_cpu {
namespace {

constexpr const char* kFormat = "gloo_cpu/2";  // first word of an announcement

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

constexpr int kListenBacklog = 4096;  // the kernel takes less if net.core.somaxconn is less
// Connections rejected in one call: faster than they can arrive, yet handshakes get their turn.
constexpr int kTurnedAwayAtOnce = 1024;

Descriptor listen_on(Address* address) {
  Descriptor fd(socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || bind(fd.get(), address->raw(), address->size) != 0 ||
      listen(fd.get(), kListenBacklog) != 0)
    return {};
  *address = local_address(fd.get());
  return fd;
}

}  // namespace

std::optional<Address> parse_address(const std::string& text) {
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
  listener.sockets_.push_back(listen_locally("gloo_cpu", &listener.file_));
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

}  // namespace db::gloo_cpu
