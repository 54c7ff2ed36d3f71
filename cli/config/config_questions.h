// The questions of `coupler config`: a configuration for this machine and this user.
// Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "cli/config/config_draft.h"

namespace coupler::cli {

// What this machine has, as defaults for answers.
struct MachineFacts {
  int cores = 1;  // that this process may use
  int gpus = 0;
  struct Backend {
    std::string name, description;
    bool needs_base = false;
  };
  std::vector<Backend> backends;  // that can be used here, "auto" and "single" left out
};
MachineFacts machine_facts();

// NVIDIA's of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them; else by
// number. None where there is no driver.
std::vector<std::string> visible_gpus();

// What an answer of Enter to every question gives.
ConfigDraft default_draft(const MachineFacts& facts);
// Asks. Throws Interrupted, or Error(kUsage) where nobody is there to answer.
ConfigDraft ask_for_draft(const MachineFacts& facts);

}  // namespace coupler::cli
