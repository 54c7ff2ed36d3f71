#include "gloo_cpu/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

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

}  // namespace db::gloo_cpu
