#include "config/schema.h"

#include <coupler/accelerator_options.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/units.h"

namespace coupler::config {
namespace {

// What a row of keys.def says about values beyond their type.
struct Constraint {
  std::string text;
  std::function<bool(const SettingValue&)> accepts;
};

template <typename T, typename Accepts>
Constraint must_be(std::string text, Accepts accepts) {
  return {std::move(text),
          [accepts](const SettingValue& value) { return accepts(std::get<T>(value)); }};
}

Constraint any_value() { return {}; }

Constraint at_least(int64_t least) {
  return must_be<int64_t>(fmt::format(">= {}", least),
                          [least](int64_t number) { return number >= least; });
}

Constraint zero_or_one() {
  return must_be<int64_t>("0 or 1", [](int64_t number) { return number == 0 || number == 1; });
}

Constraint finite_at_least(double least) {
  return must_be<double>(fmt::format("finite and >= {}", least), [least](double number) {
    return std::isfinite(number) && number >= least;
  });
}

Constraint finite_above(double bound) {
  return must_be<double>(fmt::format("finite and > {}", bound), [bound](double number) {
    return std::isfinite(number) && number > bound;
  });
}

Constraint between_0_and_1() {
  return must_be<double>("> 0 and < 1", [](double number) { return number > 0 && number < 1; });
}

Constraint at_least_0_and_below_1() {
  return must_be<double>(">= 0 and < 1", [](double number) { return number >= 0 && number < 1; });
}

Constraint positive_duration() {
  return must_be<std::chrono::nanoseconds>("> 0", [](auto time) { return time.count() > 0; });
}

Constraint duration_of_at_least_0() {
  return must_be<std::chrono::nanoseconds>(">= 0", [](auto time) { return time.count() >= 0; });
}

Constraint one_of(const std::vector<std::string>& words) {
  const size_t last = words.size() - 1;
  return must_be<std::string>(
      fmt::format("{} or {}", fmt::join(words.begin(), words.begin() + last, ", "), words[last]),
      [words](const std::string& text) {
        return std::find(words.begin(), words.end(), text) != words.end();
      });
}

Constraint not_empty(const std::string& what) {
  return must_be<std::string>(what, [](const std::string& text) { return !text.empty(); });
}

// The unit is checked when the size is used.
Constraint size_or_empty() {
  return must_be<std::string>("empty or a size such as 4GiB", [](const std::string& text) {
    return text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) != 0;
  });
}

Constraint mesh_size() {
  return must_be<MeshSize>(">= 1, or \"rest\"",
                           [](MeshSize size) { return size.ranks >= 1 || size.is_rest(); });
}

Constraint sha256_or_empty() {
  return must_be<std::string>("empty or 64 hexadecimal digits", [](const std::string& text) {
    const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
    return text.empty() || (text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex));
  });
}

// The field's own type selects the SettingValue alternative, and so the ValueType.
template <auto Table, auto Field>
SchemaKey make_key(const std::string& name, const Constraint& constraint, std::string_view doc) {
  const auto set = [](Config& config, SettingValue value) {
    auto& field = (config.*Table).*Field;
    field = std::get<std::decay_t<decltype(field)>>(std::move(value));
  };
  const auto get = [](const Config& config) -> SettingValue { return (config.*Table).*Field; };
  return {.name = name,
          .type = static_cast<ValueType>(get(Config{}).index()),
          .constraint = constraint.text,
          .doc = doc,
          .accepts = constraint.accepts,
          .set = set,
          .get = get};
}

std::vector<SchemaKey> make_schema() {
  std::vector<SchemaKey> keys;
#define COUPLER_TABLE(Struct, table)        \
  {                                         \
    using Table = Struct;                   \
    constexpr auto kTable = &Config::table; \
    const std::string prefix = #table ".";
#define COUPLER_KEY(type, name, initial, constraint, doc) \
  keys.push_back(make_key<kTable, &Table::name>(prefix + #name, constraint, doc));
#define COUPLER_TABLE_END }
#include "config/keys.def"
  return keys;
}

using CodeSettings = std::vector<std::pair<std::string, AcceleratorOptions::Value>>;

template <typename T>
void add_if_set(CodeSettings& settings, const std::string& key, const std::optional<T>& field) {
  if (!field) return;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    settings.emplace_back(key, fmt::format("{}", fmt::join(*field, ":")));
  } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
    settings.emplace_back(key, format_duration(*field));
  } else {
    settings.emplace_back(key, *field);
  }
}

constexpr bool has_fields_in_options(std::string_view table) {
  return table == "training" || table == "communication";
}

// A template, so that the keys of other tables are not looked up in AcceleratorOptions.
template <typename Options>
void add_fields(CodeSettings& settings, const Options& options) {
#define COUPLER_TABLE(Struct, table)             \
  if constexpr (has_fields_in_options(#table)) { \
    const std::string prefix = #table ".";
#define COUPLER_KEY(type, name, initial, constraint, doc) \
  add_if_set<type>(settings, prefix + #name, options.name);
#define COUPLER_TABLE_END }
#include "config/keys.def"
}

}  // namespace

const std::vector<SchemaKey>& schema() {
  static const std::vector<SchemaKey> keys = make_schema();
  return keys;
}

const SchemaKey* find_key(std::string_view name) {
  for (const SchemaKey& entry : schema()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string environment_name(std::string_view key) {
  std::string name = "COUPLER_";
  for (const char c : key) {
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::vector<std::string> schema_names() {
  std::vector<std::string> names;
  for (const SchemaKey& entry : schema()) names.emplace_back(entry.name);
  return names;
}

}  // namespace coupler::config

namespace coupler {

config::CodeSettings AcceleratorOptions::by_key() const {
  config::CodeSettings settings;
  config::add_if_set(settings, "backend.use", backend);
  config::add_if_set(settings, "backend.timeout", timeout);
  config::add_fields(settings, *this);
  settings.insert(settings.end(), values.begin(), values.end());
  return settings;
}

}  // namespace coupler
