// The rules for importing what `accelerate config` writes. Pure functions.
#pragma once

#include <string>

#include "cli/config/import_rules.h"

namespace coupler::cli {

const ImportRules& accelerate_rules();

// For keys without their own rule: the answer for their table, or for a top-level key itself; "" if
// there is none.
std::string accelerate_table_answer(const std::string& table);

}  // namespace coupler::cli
