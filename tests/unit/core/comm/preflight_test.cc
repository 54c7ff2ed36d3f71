// What the ranks must agree on before they connect.
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/raw_communicator.h"
#include "ranks.h"
#include "temporary_folder.h"

namespace coupler::comm {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder

config::PluginOption option(const std::string& key, config::OptionValue value) {
  return {.key = key,
          .value = std::move(value),
          .source = {config::ValueSource::Kind::kFile, "train.toml:7:1"}};
}

std::vector<std::optional<Error>> rank_1_has(const SetupFunction& change) {
  return run_ranks(
      3, [](Communicator&) {},
      [&](RankSetup& setup) {
        if (setup.process.rank == 1) change(setup);
      });
}

TEST(Preflight, OtherTimeout_NamesKeyRanksAndBothValues) {
  expect_errors(
      rank_1_has([](RankSetup& setup) { setup.backend.timeout = std::chrono::seconds(5); }),
      ErrorCode::kMismatch, {"backend.timeout", "'20000 ms' on rank 0", "'5000 ms' on rank 1"});
}

TEST(Preflight, OtherBackend_NamesBoth) {
  expect_errors(
      rank_1_has([](RankSetup& setup) { setup.backend.use = double_path("double_cannot_abort"); }),
      ErrorCode::kMismatch,
      {"backend.use", "'double' on rank 0", "'double_cannot_abort' on rank 1"});
}

TEST(Preflight, OptionOnOneRankOnly_NamesIt) {
  expect_errors(rank_1_has([](RankSetup& setup) {
                  setup.backend.options["double"].push_back(option("factor", int64_t{2}));
                }),
                ErrorCode::kMismatch,
                {"backend.double.factor", "not set on rank 0", "'2' on rank 1"});
}

// A composition whose bases are what these options name.
void compose(RankSetup& setup, std::vector<config::PluginOption> bases) {
  setup.backend.use = std::string(COUPLER_FIXTURES) + "/libcoupler_composite.so";
  setup.backend.plugin_path = {COUPLER_FIXTURES};
  setup.backend.options["composite"] = std::move(bases);
}

// Every base is compared: which one it is, and its version.
TEST(Preflight, OtherBaseOfOneRole_NamesTheRole) {
  expect_errors(run_ranks(
                    3, [](Communicator&) {},
                    [](RankSetup& setup) {
                      const bool other = setup.process.rank == 1;
                      compose(setup, {option("far", std::string(other ? "swift" : "gloo_cpu"))});
                    }),
                ErrorCode::kMismatch,
                {"backend.composite.far", "'gloo_cpu' on rank 0", "'swift' on rank 1"});
}

// Also if the other base is of the same backend.
TEST(Preflight, OtherVersionOfOneBase_NamesTheRole) {
  const TemporaryFolder folder("coupler-preflight");
  const std::filesystem::path newer = folder.path() / "libcoupler_gloo_cpu.so";
  std::filesystem::copy_file(std::string(COUPLER_FIXTURES) + "/libcoupler_newer_gloo_cpu.so",
                             newer);
  std::filesystem::permissions(newer, std::filesystem::perms(0755));
  for (const char* role : {"near", "far"}) {
    expect_errors(
        run_ranks(
            3, [](Communicator&) {},
            [&](RankSetup& setup) {
              const std::string own = setup.process.rank == 2 ? newer.string() : "gloo_cpu";
              const bool near = std::string(role) == "near";
              const std::string other = "gloo_cpu";
              compose(setup,
                      {option("near", near ? own : other), option("far", near ? other : own)});
            }),
        ErrorCode::kMismatch,
        {std::string("backend.composite.") + role + " (plugin version)", "'1.2.3' on rank 0",
         "'9.9.9' on rank 2"});
  }
}

TEST(Preflight, BaseThatIsNotFound_NamesTheRole) {
  for (const char* one : {"near", "far"}) {
    const std::string role = one;
    expect_errors(run_ranks(
                      2, [](Communicator&) {},
                      [&](RankSetup& setup) {
                        compose(setup,
                                {option(role, std::string("absent")),
                                 option(role == "near" ? "far" : "near", std::string("gloo_cpu"))});
                      }),
                  ErrorCode::kPlugin,
                  {"backend.composite." + role + " = \"absent\": backend \"absent\" was not found",
                   "set backend.composite." + role + " to one of these names"});
  }
}

TEST(Preflight, RankThatNeverComes_IsNamed) {
  auto store = std::make_shared<store::MemoryStore>();
  RankSetup setup = setup_of(0, 3, store);
  setup.backend.timeout = std::chrono::milliseconds(100);
  try {
    Communicator::create(options_of(setup));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_NE(std::string(error.what()).find("ranks 1, 2 of 3"), std::string::npos) << error.what();
  }
}

TEST(PluginOptions, UnknownKey_NamesPlaceAndTheValidOnes) {
  config::BackendConfig backend;
  backend.use = double_path("double");
  const plugin::Plugin plugin = plugin::Plugin::load(backend);
  backend.options["double"] = {option("facter", 2.0)};
  try {
    const PluginOptions options(plugin.table(), backend);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    const std::string text = error.what();
    for (const char* part : {"train.toml:7:1", "backend.double.facter", "factor, mode"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(PluginOptions, WrongType_SaysWhichIsWanted) {
  config::BackendConfig backend;
  backend.use = double_path("double");
  const plugin::Plugin plugin = plugin::Plugin::load(backend);
  backend.options["double"] = {option("mode", true)};
  try {
    const PluginOptions options(plugin.table(), backend);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("must be a string, not true or false"),
              std::string::npos)
        << error.what();
  }
}

TEST(PluginOptions, IntegerForANumber_IsTaken) {
  config::BackendConfig backend;
  backend.use = double_path("double");
  const plugin::Plugin plugin = plugin::Plugin::load(backend);
  backend.options["double"] = {option("factor", int64_t{3})};
  const PluginOptions options(plugin.table(), backend);
  ASSERT_EQ(options.size(), 1u);
  EXPECT_EQ(options.data()[0]->type, DB_OPTION_F64);
  EXPECT_EQ(options.data()[0]->f64, 3.0);
}

}  // namespace
}  // namespace coupler::comm
