// This machine's network: its interfaces and addresses, and where a listening socket of ours goes.
// Plain functions, [any-thread].
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace coupler {

struct NetworkAddress {
  std::string interface_name;
  std::string address;  // numeric; a link-local one of IPv6 with its %scope
};

// Of the interfaces that are up, the preferred address of each first: IPv4, then global IPv6.
std::vector<NetworkAddress> network_addresses();

// The same for messages: "lo (127.0.0.1), eth0 (192.0.2.7)".
std::string list_network_addresses();

// Whether the text is a numeric address of this machine.
bool is_own_address(const std::string& text);

// The numeric address to bind for an interface's name or an address of this machine, IPv4 or IPv6;
// "" is loopback. Throws Error(kConfig) naming what asked for it ("train.toml:3:1") and the
// interfaces that there are.
std::string bind_address(const std::string& interface_or_address,
                         const std::string& said_by = "backend.interface");

// Whether a numeric address stands for all interfaces (0.0.0.0, ::).
bool is_wildcard(const std::string& address);

// The host of a socket's address, in the form of NetworkAddress; "" where it is none of IP.
std::string numeric_address(const sockaddr* address);

// "127.0.0.1:80", "[::1]:80".
std::string address_text(const std::string& host, int port);

}  // namespace coupler
