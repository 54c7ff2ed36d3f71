// Where a listening socket of ours goes: the address of a named interface of this machine. Plain
// functions, [any-thread].
#pragma once

#include <string>
#include <vector>

namespace coupler {

struct NetworkAddress {
  std::string interface_name;
  std::string address;  // numeric; a link-local one of IPv6 with its %scope
};

// Of the interfaces that are up, the preferred address of each first: IPv4, then global IPv6.
std::vector<NetworkAddress> network_addresses();

// The numeric address to bind for an interface's name or an address of this machine, IPv4 or IPv6;
// "" is loopback. Throws Error(kConfig) listing the interfaces that there are.
std::string bind_address(const std::string& interface_or_address);

// Whether a numeric address stands for all interfaces (0.0.0.0, ::).
bool is_wildcard(const std::string& address);

// "127.0.0.1:80", "[::1]:80".
std::string address_text(const std::string& host, int port);

}  // namespace coupler
