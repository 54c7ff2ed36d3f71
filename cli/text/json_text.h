// What every --json prints. Pure function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace coupler::cli {

// With a line break. What is no UTF-8 is replaced: texts come from plugins, files and users, too,
// and must not end the report.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace coupler::cli
