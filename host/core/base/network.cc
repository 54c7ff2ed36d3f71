#include "base/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace coupler {
namespace {

// Most widely reachable first.
int preference(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return 0;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&v6) ? 2 : 1;
}

// Blocks for as long as the system's resolver takes; with AI_NUMERICHOST it takes no time.
HostAddresses ask_resolver(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) return {nullptr, ::gai_strerror(status)};
  return {std::unique_ptr<addrinfo, HostAddresses::Free>(found), ""};
}

// An address in the form that network_addresses() uses; "" if the string is not one.
std::string normal_form(const std::string& text) {
  const HostAddresses address = numeric_host(text, 0);
  return address.list ? numeric_address(address.list->ai_addr) : "";
}

// All of 127.0.0.0/8 is this machine's, though only one address of it is listed.
bool is_loopback_v4(const std::string& address) {
  in_addr v4{};
  return ::inet_pton(AF_INET, address.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

}  // namespace

std::vector<NetworkAddress> network_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(all, &::freeifaddrs);
  std::multimap<std::pair<std::string, int>, NetworkAddress> found;  // by name and preference
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address != nullptr && (entry->ifa_flags & IFF_UP) != 0 &&
        (address->sa_family == AF_INET || address->sa_family == AF_INET6)) {
      found.emplace(std::pair(entry->ifa_name, preference(address)),
                    NetworkAddress{entry->ifa_name, numeric_address(address)});
    }
  }
  std::vector<NetworkAddress> result;
  result.reserve(found.size());
  for (auto& [order, address] : found) {
    result.push_back(std::move(address));
  }
  return result;
}

std::string list_network_addresses() {
  std::vector<std::string> texts;
  for (const auto& entry : network_addresses()) {
    texts.push_back(fmt::format("{} ({})", entry.interface_name, entry.address));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

bool is_own_address(const std::string& text) {
  const auto address = normal_form(text);
  if (is_loopback_v4(address) || address == "::1") {
    return true;
  }
  const auto all = network_addresses();
  return !address.empty() && std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    return entry.address == address;
  });
}

std::string bind_address(const std::string& interface_or_address, const std::string& source) {
  if (interface_or_address.empty()) {
    return "127.0.0.1";
  }
  auto address = normal_form(interface_or_address);
  if (is_wildcard(address) || is_loopback_v4(address)) {
    return address;
  }
  std::vector<std::string> names;
  for (const auto& entry : network_addresses()) {
    if (entry.interface_name == interface_or_address || entry.address == address) {
      return entry.address;
    }
    names.push_back(entry.interface_name);
  }
  const auto nearest = nearest_name(interface_or_address, names);
  fail_config(fmt::format("this machine has no network interface '{}' that is up, and no such "
                          "address ({}){}",
                          interface_or_address, source,
                          nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
              interface_or_address,
              names.empty() ? "no interface is up: see `ip address`"
                            : fmt::format("set backend.interface (--interface of coupler launch) "
                                          "to one of these: {}",
                                          list_network_addresses()));
}

bool is_wildcard(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  return (::inet_pton(AF_INET, address.c_str(), &v4) == 1 && v4.s_addr == htonl(INADDR_ANY)) ||
         (::inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6));
}

std::string numeric_address(const sockaddr* address) {
  char text[NI_MAXHOST];
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text
                                                                                          : "";
}

std::string address_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

HostAddresses numeric_host(const std::string& address, int port) {
  return ask_resolver(address, std::to_string(port), AI_NUMERICHOST);
}

HostAddresses look_up_host(const std::string& host, int port, Deadline deadline,
                           bool wait_for_pod) {
  constexpr auto kPause = std::chrono::milliseconds(500);
  const bool may_appear = wait_for_pod && std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  HostLookup lookup(host, std::to_string(port));
  while (true) {
    auto found = lookup.addresses(deadline);
    if (!found) return {nullptr, "the system's resolver did not answer in time"};
    const bool late = std::chrono::steady_clock::now() + kPause >= deadline;
    if (found->list || !may_appear || late) return std::move(*found);
    std::this_thread::sleep_for(kPause);
  }
}

std::optional<HostAddresses> HostLookup::addresses(Deadline deadline) {
  if (!asked_.valid()) {
    if (auto numeric = ask_resolver(host_, port_, AI_NUMERICHOST); numeric.list) return numeric;
    std::packaged_task<HostAddresses()> ask(
        [host = host_, port = port_] { return ask_resolver(host, port, 0); });
    asked_ = ask.get_future();
    std::thread(std::move(ask)).detach();
  }
  if (asked_.wait_until(deadline) == std::future_status::timeout) return std::nullopt;
  return asked_.get();
}

}  // namespace coupler
