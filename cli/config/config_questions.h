// The questions of `coupler config`: a configuration for this machine and this user.
// Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "cli/import/config_draft.h"

namespace coupler::cli {

// What this machine has, as defaults for answers.
struct MachineInfo {
  int cores = 1;  // those that this process may use
  int gpus = 0;
  struct Backend {
    std::string name, description;
    bool needs_base = false;
  };
  std::vector<Backend> backends;  // usable here, without "auto" and "single"
};
MachineInfo machine_info();

// The answers that Enter alone gives, but without checkpoints.
ConfigDraft default_draft(const MachineInfo& info);
// Asks the user. Throws Interrupted, or Error(kUsage) if the answers end early or are invalid.
ConfigDraft prompt_for_draft(const MachineInfo& info);

}  // namespace coupler::cli
