// What a launcher checks about this machine's network before it starts anything: the interface that
// the ranks use, and the address and port that the other machines connect to. Plain functions; no
// threading rule.
#pragma once

#include <string>

namespace coupler::cli {

// Throws Error(kConfig), listing the interfaces, if the string is neither an interface nor an
// address of one, or means all of them. said_by: where it was set ("train.toml:3:1",
// "-o backend.interface").
void check_interface(const std::string& interface_or_address, const std::string& said_by);

// For the machine that others connect to. Throws Error(kUsage) if the host is not an address of
// this machine, or the port cannot be used.
void check_own_address_and_port(const std::string& host, int port);

}  // namespace coupler::cli
