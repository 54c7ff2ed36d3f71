// What a launcher checks of this machine's network before it starts anything: the interface that
// the ranks shall use, the address and port that the others shall meet at. Plain functions; no
// thread rule.
#pragma once

#include <string>

namespace coupler::cli {

// Throws Error(kConfig) naming the interfaces there are where the text is neither one of them nor
// an address of one, or stands for all. said_by: what asked for it ("train.toml:3:1",
// "-o backend.interface").
void check_interface(const std::string& interface_or_address, const std::string& said_by);

// For the machine that others connect to. Throws Error(kUsage) where the host is no address of this
// machine, or something listens on the port already.
void check_own_address_and_port(const std::string& host, int port);

}  // namespace coupler::cli
