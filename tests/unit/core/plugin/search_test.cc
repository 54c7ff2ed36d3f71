#include <algorithm>

#include "folder.h"
#include "plugin/resolve.h"

namespace coupler::test {
namespace {

class PluginSearch : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("COUPLER_PLUGIN_PATH"); }
  Folder first_, second_;
};

TEST_F(PluginSearch, Order_IsConfigThenEnvironmentThenBesideThenSystem) {
  setenv("COUPLER_PLUGIN_PATH", (second_.path() + "::/nowhere").c_str(), 1);
  config::BackendConfig backend;
  backend.plugin_path = {first_.path()};
  const std::vector<plugin::SearchFolder> folders = plugin::search_folders(backend);
  ASSERT_GE(folders.size(), 5u);
  EXPECT_EQ(folders[0].path, first_.path());
  EXPECT_EQ(folders[0].origin, "backend.plugin_path");
  EXPECT_EQ(folders[1].path, second_.path());
  EXPECT_EQ(folders[2].path, "/nowhere");
  EXPECT_EQ(folders[2].origin, "COUPLER_PLUGIN_PATH");
  EXPECT_EQ(folders[3].origin, "next to Coupler");
  EXPECT_EQ(folders.back().origin, "system");
}

TEST_F(PluginSearch, BuildTree_IsReachedFromTestPrograms) {
  const std::vector<plugin::SearchFolder> folders = plugin::search_folders(config::BackendConfig());
  const std::string built =
      std::filesystem::weakly_canonical(COUPLER_BINARY_DIR "/lib/coupler").string();
  EXPECT_TRUE(std::any_of(folders.begin(), folders.end(), [&](const plugin::SearchFolder& folder) {
    return folder.path == built;
  })) << built;
}

TEST_F(PluginSearch, Name_IsTakenFromTheFirstFolder) {
  const std::string wanted = first_.add("good");
  second_.add("good");
  second_.add("misnamed");
  config::BackendConfig backend;
  backend.plugin_path = {first_.path(), second_.path()};
  EXPECT_EQ(plugin::find_plugin("good", backend), wanted);
  EXPECT_EQ(plugin::find_plugin("misnamed", backend), second_.path(Folder::file_name("misnamed")));
}

TEST_F(PluginSearch, Path_IsReturnedAsItIs) {
  EXPECT_EQ(plugin::find_plugin("./x.so", config::BackendConfig()), "./x.so");
}

TEST_F(PluginSearch, List_IsSortedInEachFolderAndWithoutRepetition) {
  second_.add("good", "b");
  second_.add("good", "a");
  second_.add("good", "z");
  first_.add("good", "z");
  first_.write("libother.so", "");
  first_.write("libcoupler_.so", "");
  first_.write("libcoupler_z_impl.so", "");
  config::BackendConfig backend;
  backend.plugin_path = {first_.path(), second_.path()};
  const std::vector<plugin::FoundPlugin> found = plugin::found_plugins(backend);
  ASSERT_GE(found.size(), 3u);
  EXPECT_EQ(found[0].path, first_.path(Folder::file_name("z")));
  EXPECT_EQ(found[1].name, "a");
  EXPECT_EQ(found[2].name, "b");
  EXPECT_TRUE(std::none_of(found.begin() + 1, found.end(), [](const plugin::FoundPlugin& plugin) {
    return plugin.name.starts_with("z");
  }));
}

TEST_F(PluginSearch, UnknownName_ListsWhereItLookedAndWhatThereIs) {
  first_.add("good");
  config::BackendConfig backend;
  backend.plugin_path = {first_.path(), second_.path("absent")};
  const std::string message =
      message_of(ErrorCode::kPlugin, [&] { plugin::find_plugin("glue_cpu", backend); });
  expect_text(message, "backend \"glue_cpu\" was not found: no libcoupler_glue_cpu.so in\n");
  expect_text(message, first_.path() + " (backend.plugin_path)");
  expect_text(message, second_.path("absent") + " (backend.plugin_path; no such folder)");
  expect_text(message, "(next to Coupler");
  expect_text(message, "(system");
  expect_text(message, "Available backends: single, good");
  expect_text(message, "COUPLER_PLUGIN_PATH");
}

TEST_F(PluginSearch, Tpu_SaysThatItIsAThirdPartys) {
  const std::string message =
      message_of(ErrorCode::kPlugin, [&] { plugin::find_plugin("tpu", {}); });
  expect_text(message, "TPUs are not supported: LibTorch has no XLA in C++");
}

}  // namespace
}  // namespace coupler::test
