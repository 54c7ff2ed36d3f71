// Importing: other programs' configurations as a draft of ours, and what became of each of their
// keys. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/config/config_draft.h"

namespace coupler::cli {

struct ImportedKey {
  std::string key;                // theirs: "fsdp_config.fsdp_offload_params"
  std::string value;              // as it stands there
  std::vector<std::string> ours;  // keys of the draft: "backend.fsdp.offload.device"
  std::string why;                // where there is none, or more is to be said
};

struct Import {
  ConfigDraft draft;
  std::vector<ImportedKey> keys;  // in their order
};

// The text of another program's configuration: Accelerate's, as YAML or JSON, else DeepSpeed's
// JSON. Throws Error(kConfig) naming the place where it is neither.
Import import_text(std::string text, const std::string& where);

// The YAML of `accelerate config` (or its JSON, which is YAML, too), of any of its versions. Throws
// Error(kConfig) naming line and column where it is no YAML, or not a map.
Import import_accelerate(const std::string& text, const std::string& where);

// DeepSpeed's JSON. Throws Error(kConfig) likewise.
Import import_deepspeed(const std::string& text, const std::string& where);

// Takes back what a backend would refuse beside what else was set: in the other program it had no
// effect.
void settle_import(Import& result);

// For people: a line a key.
std::string describe(const Import& import);

}  // namespace coupler::cli
