// This machine's network: its interfaces and addresses, and the address that a socket binds. Plain
// functions, [any-thread].
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"

namespace coupler {

struct NetworkAddress {
  std::string interface_name;
  std::string address;  // numeric; link-local IPv6 with its %scope
};

// Addresses of all interfaces that are up, each interface's preferred one first: IPv4, then global
// IPv6.
std::vector<NetworkAddress> network_addresses();

// The same for messages: "lo (127.0.0.1), eth0 (192.0.2.7)".
std::string list_network_addresses();

// Whether the string is a numeric address of this machine.
bool is_own_address(const std::string& text);

// The numeric address to bind for an interface's name or an address of this machine, IPv4 or IPv6;
// "" is loopback. Throws Error(kConfig) naming the setting's source (said_by, such as
// "train.toml:3:1") and the available interfaces.
std::string bind_address(const std::string& interface_or_address,
                         const std::string& said_by = "backend.interface");

// Whether a numeric address means all interfaces (0.0.0.0, ::).
bool is_wildcard(const std::string& address);

// The host of a socket's address, in the form of NetworkAddress; "" if it is not an IP address.
std::string numeric_address(const sockaddr* address);

// "127.0.0.1:80", "[::1]:80".
std::string address_text(const std::string& host, int port);

// The addresses of a host name. Plain function, [any-thread]; blocks its caller for as long as the
// system's resolver takes.

struct HostAddresses {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list;  // for TCP, with the port; null: none known
  std::string failure;                                  // why list is null
};

// A name or a numeric address. In a Kubernetes pod, retries until the deadline, because a pod's
// name may appear after the pod itself; elsewhere looks once.
HostAddresses look_up_host(const std::string& host, int port, Deadline deadline);

// HostLookup: looks up a host's addresses with a deadline. The system's resolver has none (it
// retries for half a minute or more) and cannot be interrupted, so a detached thread runs it. The
// thread ends when the resolver gives up, and blocks neither the destructor nor the program's exit.
// Used by one thread.
class HostLookup {
 public:
  using Addresses = boost::asio::ip::tcp::resolver::results_type;

  // None if there is no answer in time; the next call waits for the same lookup, so that there are
  // never two threads. Throws boost::system::system_error with the resolver's error.
  std::optional<Addresses> addresses(const std::string& host, const std::string& port,
                                     std::chrono::steady_clock::time_point deadline);

 private:
  std::future<Addresses> asked_;  // not valid: no lookup is running
};

}  // namespace coupler
