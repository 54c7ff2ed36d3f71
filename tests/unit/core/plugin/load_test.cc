#include <fmt/format.h>

#include "folder.h"
#include "plugin/plugin.h"

namespace coupler::test {
namespace {

config::BackendConfig backend(const std::string& use,
                              const std::string& folder = COUPLER_FIXTURES) {
  config::BackendConfig config;
  config.use = use;
  config.plugin_path = {folder};
  return config;
}

std::string load_refusal(const std::string& use) {
  return message_of(ErrorCode::kPlugin, [&] { plugin::Plugin::load(backend(use)); });
}

TEST(PluginLoad_ByName, GivesItsTable) {
  const plugin::Plugin plugin = plugin::Plugin::load(backend("good"));
  EXPECT_EQ(plugin.name(), "good");
  EXPECT_STREQ(plugin.table().version, "1.2.3");
  EXPECT_EQ(plugin.path(), std::filesystem::canonical(COUPLER_FIXTURES).string() + "/" +
                               Folder::file_name("good"));
}

TEST(PluginLoad_ByPath, MayHaveAnyFileName) {
  const Folder folder;
  const std::string file = folder.path("vendor-1.so");
  std::filesystem::rename(folder.add("good"), file);
  EXPECT_EQ(plugin::Plugin::load(backend(file)).path(), file);
}

TEST(PluginLoad_Twice, GivesTheSameTable) {
  const plugin::Plugin first = plugin::Plugin::load(backend("good"));
  EXPECT_EQ(&first.table(), &plugin::Plugin::load(backend("good")).table());
}

TEST(PluginLoad_Single, IsBuiltIn) {
  EXPECT_EQ(plugin::Plugin::load(backend("single")).path(), "");
  EXPECT_EQ(plugin::Plugin::single().name(), "single");
}

TEST(PluginLoad_Auto, IsAnError) {
  const std::string message =
      message_of(ErrorCode::kConfig, [] { plugin::Plugin::load(backend("auto")); });
  expect_text(message, "backend.use = \"auto\" does not name a backend");
}

TEST(PluginLoad_OtherAbiMajor, NamesBothVersions) {
  const std::string message = load_refusal("other_major");
  expect_text(message,
              fmt::format("has ABI 7.{}, but this Coupler has {}.{}: the major versions differ",
                          DB_ABI_MINOR, DB_ABI_MAJOR, DB_ABI_MINOR));
  expect_text(message, "rebuild the plugin");
}

TEST(PluginLoad_OtherMinorBeforeOne, IsRefused) {
  expect_text(load_refusal("other_minor"), "before 1.0, minor versions must be equal");
}

TEST(PluginAbi_MinorFromOneOn, MayDiffer) {
  EXPECT_EQ(plugin::abi_problem(1, 0, 1, 3), "");
  EXPECT_EQ(plugin::abi_problem(1, 9, 1, 3), "");
  EXPECT_NE(plugin::abi_problem(2, 0, 1, 3), "");
  EXPECT_NE(plugin::abi_problem(0, 1, 1, 0), "");
}

TEST(PluginLoad_ShortTable, IsRefused) {
  expect_text(load_refusal("short_table"), "says its table has 64 bytes");
  expect_text(load_refusal("no_version"), "says its table has 8 bytes, too few to hold a version");
}

TEST(PluginLoad_MissingFunction, IsNamed) {
  expect_text(load_refusal("no_create"), "lacks the required function create");
}

TEST(PluginLoad_MissingOrBadName, IsRefused) {
  expect_text(load_refusal("no_name"), "has no name in its table");
  expect_text(load_refusal("bad_name"), "calls itself \"Bad.Name\"");
}

TEST(PluginLoad_NameUnlikeItsFile, IsRefusedByNameOnly) {
  expect_text(load_refusal("misnamed"),
              "was loaded as \"misnamed\" but its name is \"somebody_else\"");
  const std::string path = std::string(COUPLER_FIXTURES) + "/" + Folder::file_name("misnamed");
  EXPECT_EQ(plugin::Plugin::load(backend(path)).name(), "somebody_else");
}

TEST(PluginLoad_NullTable, IsRefused) {
  expect_text(load_refusal("null_table"), "returned no table from coupler_distributed_backend_v1");
}

TEST(PluginLoad_UndefinedSymbol, GivesTheLinkersText) {
  const std::string message = load_refusal("undefined");
  expect_text(message, "cannot be loaded: ");
  expect_text(message, "undefined symbol: nobody_defines_this");
}

TEST(PluginLoad_ThrowInConstructor, EndsWithMessageAndCode3) {
  EXPECT_EXIT(plugin::Plugin::load(backend("throws")), ::testing::ExitedWithCode(3),
              "coupler: error: plugin .*libcoupler_throws.so threw in its constructor .*no license "
              "file");
}

TEST(PluginLoad_Refusal, HasExitCode3) {
  try {
    plugin::Plugin::load(backend("no_create"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
  }
}

}  // namespace
}  // namespace coupler::test
