// AccelerateWord: a setting of Accelerate 1.15, as an option of `accelerate launch`, as keys of the
// file that `accelerate config` writes, or both, and what it becomes here. The options of
// `coupler launch` and the rules of `coupler config import` are made of the same rows. Constant
// data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/import/config_import.h"
#include "cli/import/import_rules.h"

namespace coupler::cli {

struct AccelerateWord {
  std::string_view option;             // "--zero_stage 0|1|2|3" (see Option::spec); "": keys only
  std::vector<std::string_view> keys;  // "deepspeed_config.zero_stage", and older names
  ImportRule rule;                     // null: launch_words say it all
  // The options of `coupler launch` that it stands for, with {} for the value: "--machine-rank {}".
  std::string_view launch_words = {};
  std::string_view doc = {};  // what the option does; "" if it has no effect or is refused
};

const std::vector<AccelerateWord>& accelerate_words();

// The parts of the table: sharding; other programs' libraries and hardware.
std::vector<AccelerateWord> accelerate_sharding_words();
std::vector<AccelerateWord> accelerate_megatron_words();

// For the importer: the rules by key, and the answer for keys without a rule (TableAnswer).
ImportRules accelerate_rules();
std::string accelerate_table_answer(const std::string& table);

// The words with the value in the place of {}.
std::string with_value(std::string_view launch_words, const std::string& value);

}  // namespace coupler::cli
