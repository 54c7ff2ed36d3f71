// This machine's network: its interfaces and addresses, and the address that a socket binds. Plain
// functions, [any-thread].
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

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

}  // namespace coupler
