#include "network.h"

#include <arpa/inet.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <system_error>

#include "config/nearest.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {
namespace {

struct Interface {
  std::string name, address;  // address "" where it has none of IP
};

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    Interface found{entry->ifa_name, ""};
    std::array<char, NI_MAXHOST> text{};
    const auto* address = entry->ifa_addr;
    if (address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6)) {
      const socklen_t size =
          address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        found.address = text.data();
        found.address.resize(std::min(found.address.find('%'), found.address.size()));
      }
    }
    result.push_back(std::move(found));
  }
  return result;
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Null where there is no such host. A pod's name may appear after the pod.
Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int tries = std::getenv("KUBERNETES_SERVICE_HOST") == nullptr ? 1 : 60;
  while (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    found = nullptr;
    if (--tries == 0) {
      break;
    }
    ::usleep(500'000);
  }
  return {found, ::freeaddrinfo};
}

// 0, or errno of a trial bind.
int try_bind(const addrinfo& address) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    return errno;
  }
  const int yes = 1;  // a port whose last user has just ended is free
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool bound =
      ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd.get(), 1) == 0;
  return bound ? 0 : errno;
}

}  // namespace

std::vector<std::string> interface_names() {
  std::set<std::string> names;
  for (const Interface& entry : interfaces()) {
    names.insert(entry.name);
  }
  return {names.begin(), names.end()};
}

bool is_own_address(const std::string& text) {
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127) {
    return true;  // the whole network is loopback
  }
  in6_addr v6{};
  if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6)) {
    return true;
  }
  const auto all = interfaces();
  return std::any_of(all.begin(), all.end(),
                     [&](const Interface& entry) { return entry.address == text; });
}

void check_interface(const std::string& name, const std::string& said_by) {
  const auto names = interface_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return;
  }
  const std::string nearest = nearest_name(name, names);
  throw Error(
      ErrorCode::kConfig,
      fmt::format("this machine has no network interface '{}' ({}); it has {}{}", name, said_by,
                  fmt::join(names, ", "),
                  nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
      {.subject = name, .hint = "name one of them with --interface, or leave it out for loopback"});
}

void check_own_address_and_port(const std::string& host, int port) {
  const Addresses found = resolve(host, port);
  if (!found) {
    throw Error(
        ErrorCode::kUsage, fmt::format("there is no host '{}'", host),
        {.subject = host, .hint = "give the first machine's address behind --main-address"});
  }
  const int failure = try_bind(*found);
  if (failure == EADDRNOTAVAIL) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is no address of this machine, but machine 0 is the one that the "
                            "others connect to",
                            host),
                {.subject = host,
                 .hint = "give machine 0's own address behind --main-address, or this machine "
                         "another --machine-rank"});
  }
  if (failure != 0) {
    throw Error(ErrorCode::kUsage,
                fmt::format("port {} of {} cannot be used: {}", port, host,
                            std::generic_category().message(failure)),
                {.subject = fmt::format("{}:{}", host, port),
                 .hint = "choose another --main-port, the same on all machines"});
  }
}

}  // namespace coupler::cli
