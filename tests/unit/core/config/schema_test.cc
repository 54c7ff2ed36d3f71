#include "config/schema.h"

#include <gtest/gtest.h>

#include <set>

namespace coupler {
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

}  // namespace
}  // namespace coupler
