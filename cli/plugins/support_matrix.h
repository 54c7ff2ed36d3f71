// The tables of `coupler plugins --matrix`: operations, types and reductions by backend. Pure
// functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/plugins/support.h"

namespace coupler::cli {

std::string matrix_text(const std::vector<Support>& supports);
nlohmann::ordered_json matrix_json(const std::vector<Support>& supports);

}  // namespace coupler::cli
