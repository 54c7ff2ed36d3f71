// The bases that a backend stands on, by role: the one base of a wrapper or sharding plugin, or
// what the extension coupler.bases/1 lists. Pure functions of a plugin's table and the
// configuration; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/error.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "plugin/plugin.h"

namespace coupler::plugin {

struct WantedBase {
  std::string role;         // of the db_base: "world"
  std::string option;       // of the backend's table, which names the backend of the base
  std::string otherwise;    // what it is if the option is not set
  std::string description;  // of the option
  bool of_machine = false;  // it connects the ranks of one machine, not all
};

// In the order in which they are created; empty for a transport. Throws Error(kPlugin) if the
// plugin's list cannot be used.
std::vector<WantedBase> wanted_bases(const DistributedBackend& table);

// Whether it composes transports, so that a wrapper or sharding plugin may stand on it.
bool is_composite(const DistributedBackend& table);

// Whether one of these transports connects the ranks of a machine. Throws as wanted_bases() does.
bool composes_machines(const DistributedBackend& table);

// The backend of that base as configured: a name, a path, or "auto".
std::string use_of(const WantedBase& base, const config::BackendConfig& backend,
                   const std::string& wrapper);

// error, which is about finding, loading or probing that base, with the option that names it.
Error about_base(const Error& error, const DistributedBackend& wrapper, const WantedBase& wanted,
                 const std::string& use);

// Why a backend with base_capabilities (DB_CAP_*) cannot be a base of the wrapper: they take no
// memory in common; "" if they do. A plugin that names no memory takes the host's.
std::string memory_problem(const DistributedBackend& wrapper, uint64_t base_capabilities);

// Throws Error(kConfig), naming the option, if there is a memory_problem() with the base of that
// name.
void check_memory(const DistributedBackend& wrapper, const WantedBase& wanted,
                  const std::string& base, uint64_t base_capabilities);

// Throws Error(kConfig), naming the option, if the loaded base cannot be that base of the wrapper.
void check_base(const DistributedBackend& wrapper, const WantedBase& wanted,
                const DistributedBackend& base);

}  // namespace coupler::plugin
