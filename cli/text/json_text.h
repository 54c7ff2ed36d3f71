// The output format of every --json. Pure function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace coupler::cli {

// Ends with a line break. Invalid UTF-8 is replaced instead of throwing: strings also come from
// plugins, files and users.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace coupler::cli
