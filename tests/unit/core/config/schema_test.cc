#include "config/schema.h"

#include <coupler/accelerator_options.h>
#include <gtest/gtest.h>

#include <set>
#include <type_traits>

namespace coupler::config {
namespace {

TEST(Schema, EveryKey_HasADocumentedMeaning) {
  for (const SchemaKey& key : schema()) {
    EXPECT_FALSE(key.doc.empty()) << key.name;
    EXPECT_EQ(key.doc.back(), '.') << key.name;
    EXPECT_EQ(key.constraint.empty(), key.accepts == nullptr) << key.name;
  }
}

TEST(Schema, EveryDefault_IsAcceptedByItsOwnKey) {
  for (const SchemaKey& key : schema()) {
    const SettingValue value = key.get(Config{});
    EXPECT_TRUE(key.accepts == nullptr || key.accepts(value)) << key.name;
    Config config;
    key.set(config, value);
    EXPECT_EQ(key.get(config), value) << key.name;
  }
}

TEST(Schema, NamesOfVariables_AreUnambiguous) {
  std::set<std::string> names;
  for (const SchemaKey& key : schema()) {
    EXPECT_TRUE(names.insert(environment_name(key.name)).second) << key.name;
  }
  EXPECT_EQ(environment_name("launch.threads_per_process"), "COUPLER_LAUNCH_THREADS_PER_PROCESS");
}

// Another value than the default, for any field of AcceleratorOptions.
template <typename T>
T other(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return !value;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value + "a";
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return {"csv", "jsonl"};
  } else {
    return value + T(8);
  }
}

constexpr bool is_key_of_options(std::string_view key) {
  return key.starts_with("training.") || key.starts_with("communication.");
}

// What the only key that is given sets.
SettingValue value_from(const AcceleratorOptions& options, const std::string& key) {
  const auto given = options.by_key();
  EXPECT_EQ(given.size(), 1U) << key;
  EXPECT_EQ(given.at(0).first, key);
  const auto raw = std::visit([](const auto& held) { return RawValue(held); }, given.at(0).second);
  return convert(raw, find_key(key)->type).value();
}

// Sets each field alone; returns the keys. A template, so that the keys of other tables are not
// looked up.
template <typename Options>
std::vector<std::string> check_fields(const Options& none) {
  std::vector<std::string> keys;
#define COUPLER_TABLE(Struct, table)             \
  if constexpr (is_key_of_options(#table ".")) { \
    const std::string prefix = #table ".";
#define COUPLER_KEY(type, name, initial, constraint, doc)                     \
  {                                                                           \
    const type before = initial;                                              \
    Options options = none;                                                   \
    options.name = other(before);                                             \
    keys.push_back(prefix + #name);                                           \
    EXPECT_EQ(value_from(options, keys.back()), SettingValue(*options.name)); \
  }
#define COUPLER_TABLE_END }
#include "config/keys.def"
  return keys;
}

TEST(AcceleratorOptions, EveryTrainingSettingHasAField) {
  std::vector<std::string> expected = schema_names();
  std::erase_if(expected, [](const std::string& key) { return !is_key_of_options(key); });
  EXPECT_EQ(check_fields(AcceleratorOptions{}), expected);
}

}  // namespace
}  // namespace coupler::config
