// Plugin: one loaded backend. Loaded plugins stay for the life of the process. The functions are
// [any-thread] (loading is serialized inside).
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::plugin {

class Plugin {
 public:
  const DistributedBackend& table() const { return *table_; }
  const std::string& path() const { return path_; }  // "" for the built-in "single"
  std::string name() const { return table_->name; }
  // Whether it has one of these capabilities, DB_CAP_*.
  bool can(uint64_t capability) const { return (table_->capabilities & capability) != 0; }

  // The one-process backend that is part of the host: world 1, host memory, every operation.
  static Plugin single();

  // For dry runs: see made_up_backend.
  static Plugin made_up();

  // Loads backend.use. "auto" is not accepted here (the launcher resolves it, see resolve_auto). A
  // name is searched in backend.plugin_path, COUPLER_PLUGIN_PATH (colon-separated, ignored in a
  // privileged process), next to libcoupler or the coupler program (../lib/coupler), and in the
  // system directory; a string with a slash is a path. Checks before dlopen: regular file, owned by
  // root or this user, writable by no one else, complete ELF file for this machine, the sha256 pin.
  // Checks afterwards: entry symbol, ABI major, required functions. Throws Error(kPlugin) with
  // where it looked or what is wrong, and how to fix it. A plugin whose static constructor throws
  // ends the process with that message and exit code 3 (plugin.cc says why).
  static Plugin load(const config::BackendConfig& backend);

 private:
  Plugin(const DistributedBackend* table, std::string path)
      : table_(table), path_(std::move(path)) {}
  const DistributedBackend* table_;
  std::string path_;
};

// One row of `coupler plugins`.
struct PluginReport {
  std::string name, path, version, description;
  std::string abi;  // "0.1"
  bool usable = false;
  int32_t score = 0;
  std::string reason;              // the probe's, or the load error
  uint64_t capabilities = 0;       // DB_CAP_*; 0 if it could not be loaded
  bool composes_machines = false;  // it composes transports, one of them within a machine

  bool can(uint64_t capability) const { return (capabilities & capability) != 0; }
};
// Loads and probes each plugin in a child process, so a bad one costs only its row. A process with
// other threads cannot be forked safely: there it is done in place.
std::vector<PluginReport> list_plugins(const config::BackendConfig& backend);

// Whether a transport that needs an MPI launch is possible: mpirun started this process, it could
// still start the job's processes (a launcher's question), or the processes exist and it did not
// start them.
enum class MpiLaunch { kInside, kPossible, kTooLate };

// Where a job's ranks are, as far as it is known to all of them alike: on one machine, or on
// several of which some have several.
enum class Spread { kUnknown, kOneMachine, kShared };

// What "auto" means here: of all transports found, the one whose probe returns the highest score;
// of equal ones, the first in search order. Each is loaded and probed in a child process, as for
// list_plugins. One that fails, needs a different launch, is for one machine (unless all ranks are
// on one), or (on_host: tensors are in host memory) moves only a device's memory is passed over,
// and logged with its reason. Throws Error(kPlugin) with these reasons if none is left.
std::string resolve_auto(const config::BackendConfig& backend, MpiLaunch launch,
                         bool on_host = false, Spread spread = Spread::kUnknown);

// Throws Error(kPlugin) "plugin <path> <problem>"; its subject is the path.
[[noreturn]] void refuse_plugin(const std::string& path, const std::string& problem,
                                const std::string& hint);

// "" if a plugin of that version works with a host of host_major.host_minor, else why not.
std::string abi_problem(uint32_t major, uint32_t minor, uint32_t host_major, uint32_t host_minor);

// Throws Error(kPlugin): incompatible ABI, table too short, no name, a required function missing.
void check_table(const DistributedBackend& table, const std::string& path);

// "single": the one-process backend that is part of the host. World 1, host memory, every
// operation; each is a copy, a scaling, or a message to itself. Its communicators are those of the
// template that `coupler new plugin --lang c++` copies (api/template/plugin_cpp/cpp_self).
const DistributedBackend& single_backend();

// "made_up": communicators of which only this rank exists. Every operation is complete at once and
// touches no memory, so that a dry run may give it tensors without memory. Not listed, nor found by
// name. The functions are also for what only asks a communicator for its rank and size.
const DistributedBackend& made_up_backend();
const db_communicator_functions& made_up_functions();

}  // namespace coupler::plugin
