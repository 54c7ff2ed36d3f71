#include "base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace coupler {

std::optional<std::string> json_string(std::string_view text) {
  // Nearly all names: no need for a JSON value.
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }))
    return fmt::format("\"{}\"", text);
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {  // thrown for bytes that are not UTF-8
    return std::nullopt;
  }
}

}  // namespace coupler
