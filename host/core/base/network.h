// This machine's network: its interfaces and addresses, the address that a socket binds, and the
// addresses of other hosts. Plain functions, [any-thread].
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
// "" is loopback. Throws Error(kConfig) naming the setting's source (source, such as
// "train.toml:3:1") and the available interfaces.
std::string bind_address(const std::string& interface_or_address,
                         const std::string& source = "backend.interface");

// Whether a numeric address means all interfaces (0.0.0.0, ::).
bool is_wildcard(const std::string& address);

// The host of a socket's address, in the form of NetworkAddress; "" if it is not an IP address.
std::string numeric_address(const sockaddr* address);

// "127.0.0.1:80", "[::1]:80".
std::string address_text(const std::string& host, int port);

// A host's addresses for TCP, with the port; a null list: none known.
struct HostAddresses {
  struct Free {
    void operator()(addrinfo* first) const { ::freeaddrinfo(first); }
  };
  std::unique_ptr<addrinfo, Free> list;
  std::string failure;  // why the list is null
};

// The address that a string is; null if it is not numeric. Takes no time.
HostAddresses numeric_host(const std::string& address, int port);

// The addresses of a name or a numeric address; null if there is no answer by the deadline. In a
// Kubernetes pod, an unknown name is looked up again until the deadline unless wait_for_pod is
// false, because a pod's name may appear after the pod itself.
HostAddresses look_up_host(const std::string& host, int port, Deadline deadline,
                           bool wait_for_pod = true);

// HostLookup: looks up one host's addresses. The system's resolver has no deadline (it retries for
// half a minute or more) and cannot be interrupted, so a detached thread runs it unless the address
// is numeric. The thread ends when the resolver gives up, and blocks neither the destructor nor the
// program's exit. Used by one thread.
class HostLookup {
 public:
  HostLookup(std::string host, std::string port) : host_(std::move(host)), port_(std::move(port)) {}

  // None if there is no answer by the deadline; the next call waits for the same lookup, so that
  // there are never two threads.
  std::optional<HostAddresses> addresses(Deadline deadline);

 private:
  std::string host_;
  std::string port_;
  std::future<HostAddresses> asked_;  // not valid: no lookup is running
};

}  // namespace coupler
