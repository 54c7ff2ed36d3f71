// The folders in which a backend's name is searched. [any-thread]; reads the environment each time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "plugin/plugin.h"

namespace coupler::plugin {

// The folder of the program or library that holds this code; empty if it cannot be found out.
std::filesystem::path own_folder();

struct SearchFolder {
  std::string path;
  std::string origin;  // why it is searched: "backend.plugin_path", "COUPLER_PLUGIN_PATH"…
};

// In search order, without repetition; includes folders that do not exist.
std::vector<SearchFolder> search_folders(const config::BackendConfig& backend);

struct FoundPlugin {
  std::string name;  // of the file libcoupler_NAME.so
  std::string path;
};

// Every plugin file of those folders: by folder, sorted by name within each; of equal names, the
// first one found.
std::vector<FoundPlugin> found_plugins(const config::BackendConfig& backend);
std::vector<std::string> found_plugin_names(const config::BackendConfig& backend);
// What lists of backends show: backend.use if it is a path, the names found, and "single".
std::vector<std::string> listed_uses(const config::BackendConfig& backend);

// The file that use names: a string with a slash is a path and returned as is; a name is searched.
// Throws Error(kPlugin) listing every folder searched and the available names.
std::string find_plugin(const std::string& use, const config::BackendConfig& backend);

// What transport a job uses, decided once, before its processes exist. [any-thread].

struct TransportChoice {
  std::string use;                     // backend.use with "auto" resolved
  std::string transport;               // what moves the bytes: use, or the bases: "one and another"
  bool needs_mpi_launch = false;       // a transport's processes must be started by mpirun
  std::vector<std::string> overrides;  // "key=value", as for -o, for what was resolved
};

// Loads and probes the backend, and its bases if it needs any, in child processes. Throws
// Error(kPlugin) with the reason if one is unusable, Error(kConfig) if it cannot be a base. launch:
// whether mpirun started, or could start, the processes. on_host, spread: as in resolve_auto; but
// here "auto" may also be a composition of transports (plugin/automatic.h).
TransportChoice choose_transport(const config::BackendConfig& backend, MpiLaunch launch,
                                 bool on_host = false, Spread spread = Spread::kUnknown);

// Whether mpirun must start the processes of backend.use or, for a wrapper, of a base. Loads them
// into this process; false for "auto", which the launcher resolves. Throws what Plugin::load does.
bool needs_mpi_launch(const config::BackendConfig& backend);

}  // namespace coupler::plugin
