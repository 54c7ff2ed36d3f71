#include "track/value_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

namespace coupler {
namespace {

bool is_plain_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

std::string quoted(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string text_of(const TrackValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    if (std::isnan(*number)) return "nan";
    return fmt::format("{}", *number);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) return fmt::format("{}", *number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  return std::get<std::string>(value);
}

std::optional<double> number_of(const TrackValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1.0 : 0.0;
  return std::nullopt;
}

std::string as_utf8(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  return nlohmann::json::parse(quoted(text)).get<std::string>();
}

void append_json_value(std::string& out, const TrackValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return append_json_text(out, *text);
  const auto* number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) {
    out += std::isnan(*number) ? "\"NaN\"" : *number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else if (number != nullptr) {
    fmt::format_to(std::back_inserter(out), "{}", *number);
  } else {
    out += text_of(value);
  }
}

void append_json_text(std::string& out, std::string_view text) {
  if (is_plain_ascii(text)) {
    out.append("\"").append(text).append("\"");
  } else {
    out += quoted(text);
  }
}

void append_json_object(std::string& out, const TrackValues& values) {
  out += '{';
  bool first = true;
  for (auto entry = values.begin(); entry != values.end(); ++entry) {
    const bool repeats = std::any_of(std::next(entry), values.end(), [&](const auto& later) {
      return later.first == entry->first;
    });
    if (repeats) continue;
    if (!first) out += ", ";
    first = false;
    append_json_text(out, entry->first);
    out += ": ";
    append_json_value(out, entry->second);
  }
  out += '}';
}

}  // namespace coupler
