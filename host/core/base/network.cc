#include "base/network.h"

#include <arpa/inet.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

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

// An address in the form that network_addresses() uses; "" if the string is not one.
std::string normal_form(const std::string& text) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(text.c_str(), nullptr, &hints, &found) != 0) {
    return "";
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, &::freeaddrinfo);
  return numeric_address(address->ai_addr);
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
  std::vector<std::pair<int, NetworkAddress>> found;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address != nullptr && (entry->ifa_flags & IFF_UP) != 0 &&
        (address->sa_family == AF_INET || address->sa_family == AF_INET6)) {
      found.push_back({preference(address), {entry->ifa_name, numeric_address(address)}});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.interface_name, a.first) <
           std::pair(b.second.interface_name, b.first);
  });
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

std::string bind_address(const std::string& interface_or_address, const std::string& said_by) {
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
  throw Error(
      ErrorCode::kConfig,
      fmt::format("this machine has no network interface '{}' that is up, and no such "
                  "address ({}){}",
                  interface_or_address, said_by,
                  nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
      {.subject = interface_or_address,
       .hint = names.empty() ? "no interface is up: see `ip address`"
                             : fmt::format("set backend.interface (--interface of coupler launch) "
                                           "to one of these: {}",
                                           list_network_addresses())});
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

namespace {

constexpr auto kPause = std::chrono::milliseconds(500);

}  // namespace

HostAddresses look_up_host(const std::string& host, int port, Deadline deadline) {
  const bool may_appear = std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  const auto service = std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  while (true) {
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
    if (status == 0) {
      return {{found, ::freeaddrinfo}, ""};
    }
    if (!may_appear || std::chrono::steady_clock::now() + kPause >= deadline) {
      return {{nullptr, ::freeaddrinfo}, ::gai_strerror(status)};
    }
    std::this_thread::sleep_for(kPause);
  }
}

std::optional<HostLookup::Addresses> HostLookup::addresses(
    const std::string& host, const std::string& port,
    std::chrono::steady_clock::time_point deadline) {
  if (!asked_.valid()) {
    std::promise<Addresses> answer;
    asked_ = answer.get_future();
    std::thread([answer = std::move(answer), host, port]() mutable {
      try {
        boost::asio::io_context context;
        answer.set_value(boost::asio::ip::tcp::resolver(context).resolve(host, port));
      } catch (...) {
        answer.set_exception(std::current_exception());
      }
    }).detach();
  }
  if (asked_.wait_until(deadline) == std::future_status::timeout) return std::nullopt;
  return asked_.get();
}

}  // namespace coupler
