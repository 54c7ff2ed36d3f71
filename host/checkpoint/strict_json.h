// JSON from strangers: what the library lets pass and a reader would stumble over is refused.
// Pure function, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace coupler::checkpoint {

// What is wrong with a text, and below which key ("" where that is unknown).
struct JsonProblem {
  std::string key;
  std::string rule;
};

// Throws JsonProblem for what is no JSON in UTF-8, for a key that an object holds twice (the last
// would win), for a NUL byte and for more levels of brackets than max_nesting.
nlohmann::json parse_strict_json(std::string_view text, int max_nesting);

}  // namespace coupler::checkpoint
