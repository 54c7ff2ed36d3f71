// The rules for what `accelerate config` writes. Pure functions.
#pragma once

#include <string>

#include "cli/config/import_rules.h"

namespace coupler::cli {

const ImportRules& accelerate_rules();

// For keys without a rule of their own: the answer for their table (or for themselves, where they
// stand in none), "" where there is none.
std::string accelerate_table_answer(const std::string& table);

}  // namespace coupler::cli
