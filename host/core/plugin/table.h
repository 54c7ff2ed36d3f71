// Checks of the table that a backend returned. Pure functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>

namespace coupler {

// "" if a plugin of that version works with a host of host_major.host_minor, else why not.
std::string abi_problem(uint32_t major, uint32_t minor, uint32_t host_major, uint32_t host_minor);

// Throws Error(kPlugin): incompatible ABI, table too short, no name, a required function missing.
void check_table(const DistributedBackend& table, const std::string& path);

}  // namespace coupler
