// What a launcher can know of this machine's network before it starts anything: interfaces,
// addresses, ports. Plain functions; no thread rule.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

std::vector<std::string> interface_names();  // sorted, none twice

// Whether the text is a numeric address of one of this machine's interfaces.
bool is_own_address(const std::string& text);

// Throws Error(kConfig) naming the interfaces there are where `name` is none of them. said_by: what
// asked for it ("train.toml:3:1", "-o backend.interface").
void check_interface(const std::string& name, const std::string& said_by);

// For the machine that others connect to. Throws Error(kUsage) where the host is no address of this
// machine, or something listens on the port already.
void check_own_address_and_port(const std::string& host, int port);

}  // namespace coupler::cli
