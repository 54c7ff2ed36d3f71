#include "cli/text/words.h"

#include <fmt/format.h>

#include "base/text.h"

namespace coupler::cli {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace coupler::cli
