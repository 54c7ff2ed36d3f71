// Settings: the backends, stages and placements that can train a model, fastest first, and the
// memory each needs on a rank. Pure functions, except that they load plugins.
#pragma once

#include <coupler/processes.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/ledger.h"
#include "estimate/step_log.h"
#include "plugin/plugin.h"

namespace coupler::estimate {

struct Setting {
  std::string name;                                                  // "ZeRO stage 2"
  std::string use;                                                   // backend.use
  std::vector<std::pair<std::string, config::OptionValue>> options;  // of [backend.USE]
  bool needs_disk = false;
  std::string description;  // a few words, or ""
  int step_time = 0;        // in percent of an unsharded model's; 0: unknown
  bool is_default = false;  // without options, the backend would do this
  // The options and tables of [backend.USE] that a setting replaces.
  std::vector<std::string> replaced;
};

// The backend's presets (coupler/presets.h), in its order. folder: on a disk, for those that need
// one.
std::vector<Setting> presets_of(const plugin::Plugin& plugin, const std::string& folder);

// An unsharded model, and the presets of every sharding plugin that backend finds by name and whose
// speed is known. Fastest first; settings that keep state on a disk come last.
std::vector<Setting> known_settings(const config::BackendConfig& backend,
                                    const std::string& folder);

// The setting as a program's configuration; the other options of its backend in config stay.
config::BackendConfig apply(const Setting& setting, const config::BackendConfig& config);

// The ranks with which one rank shares a model.
struct SharingRanks {
  int averaging = 1;  // average the gradients of what they hold
  int sharding = 1;   // of these, a group of parallel.shard; 1: the backend's options say
  int experts = 1;    // of these, those that divide the experts of mixtures
};
SharingRanks sharing_ranks(const Mesh& mesh);

// The most that any of these ranks needs; of a pipeline's, those of the log's stage. An "auto"
// backend does not shard models. memory: where the optimizer state of unsharded models is. Throws
// Error(kConfig) if parallel.shard is set but the backend does not shard over such groups, and
// Error(kUnsupported) if parallel.expert is set but the backend shards models, or for what a
// pipeline refuses.
MemoryEstimate estimate_memory(const StepLog& log, const config::BackendConfig& config,
                               const SharingRanks& ranks,
                               const config::CommunicationConfig& communication,
                               const config::MemoryConfig& memory = {});

// The pattern of module names for memory.activation_checkpointing that selects the model's largest
// list of modules ("blocks.*"); "" if it has none.
std::string repeated_modules(const LoggedModel& model);

// memory.limit in bytes; 0 if none is set. Throws Error(kConfig) naming the place where it was set.
uint64_t memory_limit_of(const config::Config& config);

}  // namespace coupler::estimate
