#include "config/value.h"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>

#include "base/units.h"

namespace coupler::config {
namespace {

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

std::string render_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  return fmt::format("{}", number);
}

std::string render_list(const std::vector<std::string>& list) {
  std::string text = "[";
  for (const std::string& item : list) {
    if (text.size() > 1) text += ", ";
    text += quote(item);
  }
  return text + "]";
}

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

template <typename T>
std::optional<SettingValue> take(const RawValue& value) {
  if (const T* held = std::get_if<T>(&value)) return *held;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(ValueType type) {
  switch (type) {
    case ValueType::kString:
      return "string";
    case ValueType::kInteger:
      return "integer";
    case ValueType::kNumber:
      return "number";
    case ValueType::kBoolean:
      return "boolean (true or false)";
    case ValueType::kDuration:
      return "duration (such as \"30s\", \"500ms\", \"2min\", or seconds)";
    case ValueType::kStringList:
      return "list of strings";
  }
  return "value";
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
  }
  return std::nullopt;
}

std::string describe(const RawValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::string>) return "string " + quote(held);
        if constexpr (std::is_same_v<T, int64_t>) return fmt::format("integer {}", held);
        if constexpr (std::is_same_v<T, double>) return "float " + render_number(held);
        if constexpr (std::is_same_v<T, bool>) return held ? "boolean true" : "boolean false";
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return "list " + render_list(held);
        }
        if constexpr (std::is_same_v<T, OtherValue>) return held.what;
      },
      value);
}

std::string render(const SettingValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::string>) return quote(held);
        if constexpr (std::is_same_v<T, int64_t>) return fmt::format("{}", held);
        if constexpr (std::is_same_v<T, double>) return render_number(held);
        if constexpr (std::is_same_v<T, bool>) return held ? "true" : "false";
        if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
          return quote(format_duration(held));
        }
        if constexpr (std::is_same_v<T, std::vector<std::string>>) return render_list(held);
      },
      value);
}

std::string render(const OptionValue& value) {
  return std::visit([](const auto& held) { return render(SettingValue(held)); }, value);
}

}  // namespace coupler::config
