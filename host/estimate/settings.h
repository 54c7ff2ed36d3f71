// Settings: the backends, stages and placements that a model could be trained with, in the order in
// which they cost time, and what each needs of a rank. Pure functions, but that they load plugins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "estimate/ledger.h"
#include "estimate/step_log.h"

namespace coupler {

struct Setting {
  std::string name;                                          // "deepspeed_like, stage 2"
  std::string use;                                           // backend.use
  std::vector<std::pair<std::string, OptionValue>> options;  // of [backend.USE]
  bool needs_disk = false;
};

// Fastest first; what keeps state on a disk comes last. folder: on that disk.
std::vector<Setting> known_settings(const std::string& folder);

// A setting as a program's configuration would have it; what config says of its backend stays.
BackendConfig apply(const Setting& setting, const BackendConfig& config);

// The most that any rank of so many needs. An "auto" backend keeps models whole. memory: where an
// optimizer's state of whole models is.
MemoryEstimate estimate_memory(const StepLog& log, const BackendConfig& config, int world,
                               const CommunicationConfig& communication,
                               const MemoryConfig& memory = {});

// The pattern of module names for memory.activation_checkpointing that divides a model into its
// largest row of alike modules ("blocks.*"); "" where it has none.
std::string repeated_modules(const LoggedModel& model);

}  // namespace coupler
