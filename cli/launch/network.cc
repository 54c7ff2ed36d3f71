#include "cli/launch/network.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "base/host_lookup.h"
#include "base/network_interface.h"
#include "base/unique_fd.h"

namespace coupler::cli {
namespace {

// How long a launcher waits for its pod's name to appear.
constexpr auto kNameTimeout = std::chrono::seconds(30);

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

void check_interface(const std::string& interface_or_address, const std::string& said_by) {
  const auto address = bind_address(interface_or_address, said_by);
  if (is_wildcard(address)) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("'{}' means all network interfaces, but connections need a specific one "
                    "({})",
                    interface_or_address, said_by),
        {.subject = interface_or_address,
         .hint = fmt::format("name one with --interface, or omit it for loopback: {}",
                             list_network_addresses())});
  }
}

void check_own_address_and_port(const std::string& host, int port) {
  const auto found = look_up_host(host, port, deadline_after(kNameTimeout));
  if (!found.list) {
    throw Error(ErrorCode::kUsage, fmt::format("unknown host '{}'", host),
                {.subject = host, .hint = "give the first machine's address with --main-address"});
  }
  const int failure = try_bind(*found.list);
  if (failure == EADDRNOTAVAIL) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is not an address of this machine, but the others connect to "
                            "machine 0",
                            host),
                {.subject = host,
                 .hint = "give machine 0's own address with --main-address, or give this machine "
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
