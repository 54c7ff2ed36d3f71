#include "cli/text/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace coupler::cli {

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i + 1 == row.size() ? row[i] + "\n" : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
  }
  return text;
}

std::string wrapped(std::string_view text, size_t used, const std::string& start) {
  constexpr size_t kColumns = 100;
  std::string result;
  while (!text.empty()) {
    size_t length = text.size();
    if (used + length > kColumns) {
      length = text.rfind(' ', kColumns - used);
      if (length == std::string_view::npos) length = std::min(text.find(' '), text.size());
    }
    result += text.substr(0, length);
    text.remove_prefix(std::min(text.size(), length + 1));
    if (!text.empty()) result += "\n" + start;
    used = start.size();
  }
  return result + "\n";
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_blank = byte <= 0x20 || byte == 0x7f;
    if (!is_blank) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  return line;
}

std::string printable(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      clean += fmt::format("\\x{:02x}", byte);
    } else {
      clean += c;
    }
  }
  return clean;
}

std::string json_text(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace coupler::cli
