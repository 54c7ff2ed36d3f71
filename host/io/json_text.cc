#include "io/json_text.h"

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
  } catch (const nlohmann::json::type_error&) {  // what it says of bytes that are no UTF-8
    return std::nullopt;
  }
}

std::string shown_name(std::string_view name) {
  const bool valid = json_string(name).has_value();
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = valid && (byte & 0xc0) == 0x80;  // the character before it
    if (text.size() >= 120 && !continues) return text + "…";
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !valid))
      text += fmt::format("\\x{:02x}", byte);
    else
      text += c;
  }
  return text;
}

}  // namespace coupler
