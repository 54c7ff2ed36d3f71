#include "estimate/settings.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "estimate/plan.h"
#include "estimate/transformer.h"

namespace coupler::estimate {
namespace {

LoggedModel model_with(const std::vector<std::string>& names) {
  std::vector<LoggedParameter> parameters;
  for (const std::string& name : names) parameters.push_back({.name = name, .sizes = {100}});
  return model_of_parameters("net", std::move(parameters));
}

TEST(Settings, RepeatedModules_AreTheLargestRow) {
  EXPECT_EQ(repeated_modules(model_with(
                {"te.weight", "blocks.0.a.weight", "blocks.1.a.weight", "heads.0.weight"})),
            "blocks.*");
  EXPECT_EQ(repeated_modules(model_with({"0.weight", "2.weight"})), "*");
  EXPECT_EQ(repeated_modules(model_with({"a.weight", "b.weight"})), "");
  EXPECT_EQ(repeated_modules(model_with({"only.0.weight"})), "");
}

TEST(Settings, FastestFirst_DisksLast) {
  bool disk = false;
  for (const Setting& setting : known_settings({}, "/d")) {
    EXPECT_TRUE(setting.needs_disk || !disk) << setting.name;
    disk = setting.needs_disk;
  }
  EXPECT_EQ(known_settings({}, "/d").front().name, "replicate");
}

TEST(Settings, Known_AreThePresetsOfThePluginsThatAreFound) {
  std::vector<std::string> names;
  for (const Setting& setting : known_settings({}, "/d")) names.push_back(setting.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "replicate", "ZeRO stage 1", "ZeRO stage 2", "fsdp shard_grad_op",
                       "fsdp full_shard", "ZeRO stage 3", "ZeRO stage 3, optimizer on disk",
                       "ZeRO stage 3, all on disk", "fsdp full_shard, all on disk"}));
}

TEST(Settings, EveryPreset_HasOptionsThatItsBackendTakes) {
  LoggedModel model = model_with({"a.weight"});
  model.parameters[0].dtype = DB_F32;
  for (const char* use : {"fsdp", "deepspeed_like"}) {
    config::BackendConfig config;
    config.use = use;
    std::string defaults;
    for (const Setting& preset : presets_of(plugin::Plugin::load(config), "/d")) {
      EXPECT_NO_THROW(plan_for(apply(preset, config), model, 0, 2)) << preset.name;
      EXPECT_FALSE(preset.description.empty()) << preset.name;
      if (preset.is_default) defaults += preset.name;
    }
    EXPECT_EQ(defaults, use == std::string("fsdp") ? "fsdp full_shard" : "ZeRO stage 2");
  }
}

TEST(Settings, Apply_LeavesTheUsersOptionsAndDropsWhatTheSettingDecides) {
  config::BackendConfig config;
  config.options["fsdp"] = {{"prefetch", int64_t{4}, {}},
                            {"strategy", std::string("no_shard"), {}},
                            {"offload.device", std::string("nvme"), {}}};
  const Setting setting{.name = "full",
                        .use = "fsdp",
                        .options = {{"strategy", std::string("full_shard")}},
                        .description = {},
                        .replaced = {"offload", "strategy"}};
  const config::BackendConfig applied = apply(setting, config);
  EXPECT_EQ(applied.use, "fsdp");
  const auto& options = applied.options.at("fsdp");
  ASSERT_EQ(options.size(), 2u);
  EXPECT_EQ(options[0].key, "prefetch");
  EXPECT_EQ(std::get<std::string>(options[1].value), "full_shard");
}

config::Config with_limit(const std::string& text) {
  static const char* const kNone[] = {nullptr};
  return config::load_config({.overrides = {"memory.limit=" + text}, .environment = kNone});
}

TEST(MemoryLimitSetting, Sizes_AreReadAsWritten) {
  EXPECT_EQ(memory_limit_of(config::Config()), 0u);
  EXPECT_EQ(memory_limit_of(with_limit("4GiB")), uint64_t{4} << 30);
  EXPECT_EQ(memory_limit_of(with_limit("\"1500MB\"")), 1'500'000'000u);
}

TEST(MemoryLimitSetting, NoSize_IsAnErrorOfTheConfiguration) {
  for (const std::string text : {"\"4gb\"", "\"4 Gi\"", "\"0\""}) {
    try {
      memory_limit_of(with_limit(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(std::string(error.what()).find("memory.limit"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("is not a size"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace coupler::estimate
