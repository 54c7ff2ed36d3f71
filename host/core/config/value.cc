#include "config/value.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/units.h"

namespace coupler::config {
namespace {

constexpr std::string_view kRestWord = "rest";

// A TOML basic string; control characters are escaped, so that it is safe to print.
std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// A value as written in a TOML file.
struct Render {
  std::string operator()(const std::string& text) const { return quote(text); }
  std::string operator()(int64_t number) const { return fmt::format("{}", number); }
  std::string operator()(double number) const {
    return std::isnan(number) ? "nan" : fmt::format("{}", number);
  }
  std::string operator()(bool truth) const { return truth ? "true" : "false"; }
  std::string operator()(std::chrono::nanoseconds duration) const {
    return quote(format_duration(duration));
  }
  std::string operator()(const std::vector<std::string>& list) const {
    std::string text = "[";
    for (const std::string& item : list) {
      if (text.size() > 1) text += ", ";
      text += quote(item);
    }
    return text + "]";
  }
  std::string operator()(MeshSize size) const {
    return size.is_rest() ? quote(kRestWord) : fmt::format("{}", size.ranks);
  }
  std::string operator()(const OtherValue& other) const { return other.what; }
};

std::vector<std::string> split_at_colons(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t colon = text.find(':');
    if (colon != 0) parts.emplace_back(text.substr(0, colon));
    text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  }
  return parts;
}

std::optional<SettingValue> to_number(const RawValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

std::optional<SettingValue> to_duration(const RawValue& value) {
  std::optional<std::chrono::nanoseconds> duration;
  if (const auto* text = std::get_if<std::string>(&value)) {
    duration = parse_duration(*text);
  } else if (const auto seconds = to_number(value)) {
    duration = duration_of_seconds(std::get<double>(*seconds));
  }
  if (!duration) return std::nullopt;
  return *duration;
}

std::optional<SettingValue> to_mesh_size(const RawValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && *text == kRestWord) return MeshSize::rest();
  const auto* ranks = std::get_if<int64_t>(&value);
  if (ranks == nullptr || MeshSize{*ranks}.is_rest()) return std::nullopt;
  return MeshSize{*ranks};
}

template <typename T>
std::optional<SettingValue> take(const RawValue& value) {
  if (const T* held = std::get_if<T>(&value)) return *held;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(ValueType type) {
  constexpr std::array<std::string_view, 7> kNames = {
      "string",
      "integer",
      "number",
      "boolean (true or false)",
      "duration (such as \"30s\", \"500ms\", \"2min\", or seconds)",
      "list of strings",
      "integer or \"rest\""};
  return kNames[static_cast<size_t>(type)];
}

std::optional<SettingValue> convert(const RawValue& value, ValueType type) {
  switch (type) {
    case ValueType::kString:
      return take<std::string>(value);
    case ValueType::kInteger:
      return take<int64_t>(value);
    case ValueType::kNumber:
      return to_number(value);
    case ValueType::kBoolean:
      return take<bool>(value);
    case ValueType::kDuration:
      return to_duration(value);
    case ValueType::kStringList:
      if (const auto* text = std::get_if<std::string>(&value)) return split_at_colons(*text);
      return take<std::vector<std::string>>(value);
    case ValueType::kMeshSize:
      return to_mesh_size(value);
  }
  return std::nullopt;
}

std::string describe(const RawValue& value) {
  // By RawValue's alternatives; the last says itself what it is.
  constexpr std::array<std::string_view, 6> kKinds = {"string ",  "integer ", "float ",
                                                      "boolean ", "list ",    ""};
  return std::string(kKinds[value.index()]) + std::visit(Render{}, value);
}

std::string render(const SettingValue& value) { return std::visit(Render{}, value); }

std::string render(const OptionValue& value) { return std::visit(Render{}, value); }

}  // namespace coupler::config
