// The questions of `coupler config`: a configuration for this machine and this user.
// Single-threaded.
#pragma once

#include "config_draft.h"

namespace coupler::cli {

// What this machine has, as defaults for answers.
struct MachineFacts {
  int cores = 1;  // that this process may use
  int gpus = 0;
  std::vector<std::string> backends;  // that can be used here, "auto" and "single" left out
};
MachineFacts machine_facts();

// What an answer of Enter to every question gives.
ConfigDraft default_draft(const MachineFacts& facts);
// Asks. Throws Interrupted.
ConfigDraft ask_for_draft(const MachineFacts& facts);

}  // namespace coupler::cli
