// Parses untrusted JSON: rejects what the library accepts but a reader could misinterpret. Pure
// function, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace coupler {

// What is wrong, and under which key ("" if unknown).
struct JsonProblem {
  std::string key;
  std::string rule;
};

// Throws JsonProblem for anything but JSON in UTF-8, for a duplicate key in an object (the last
// would win), for a NUL byte, and for more levels of brackets than max_nesting.
nlohmann::json parse_strict_json(std::string_view text, int max_nesting);

}  // namespace coupler
