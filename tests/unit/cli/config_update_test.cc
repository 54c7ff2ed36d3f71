// What `coupler config update` does to a file's text.
#include "cli/import/config_update.h"

#include <coupler/error.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/import/config_draft.h"
#include "refusal.h"
#include "temporary_folder.h"

namespace coupler::cli {
namespace {

const std::vector<RenamedKey> kRenamed = {{"training.steps", "training.accumulation_steps"},
                                          {"backend.mpi.wait", "backend.mpi.yield_when_idle"}};

TEST(ConfigUpdate, RenamesKeys_AndKeepsTheRest) {
  const std::string text =
      "# mine\n[training]\nsteps = 2  # of steps\nseed=1\n\n[backend.mpi]\n  \"wait\" = \"auto\"\n";
  const UpdatedConfig updated = update_config(text, "a.toml", kRenamed);
  EXPECT_EQ(updated.text,
            "# mine\n[training]\naccumulation_steps = 2  # of steps\nseed=1\n\n[backend.mpi]\n"
            "  \"yield_when_idle\" = \"auto\"\n");
  EXPECT_EQ(updated.changes, (std::vector<std::string>{
                                 "a.toml:3: training.steps is now training.accumulation_steps",
                                 "a.toml:7: backend.mpi.wait is now backend.mpi.yield_when_idle"}));
}

TEST(ConfigUpdate, OfDottedKeys_ChangesTheLastPart) {
  EXPECT_EQ(update_config("training.steps = 2\n", "a.toml", kRenamed).text,
            "training.accumulation_steps = 2\n");
  const std::vector<RenamedKey> twice = {{"training.training", "training.steps"}};
  EXPECT_EQ(update_config("training.training = 2\n", "a.toml", twice).text, "training.steps = 2\n");
}

TEST(ConfigUpdate, OfTodaysForm_ChangesNothing) {
  const std::string text = "[training]\nseed = 1\n";
  EXPECT_EQ(update_config(text, "a.toml", kRenamed).text, text);
  EXPECT_TRUE(update_config(text, "a.toml", renamed_keys()).changes.empty());
}

TEST(ConfigUpdate, OfBothNames_IsRefused_NamingThem) {
  const std::string problem = refusal(
      [] { update_config("[training]\naccumulation_steps = 1\nsteps = 2\n", "a.toml", kRenamed); });
  EXPECT_SAYS(problem, "a.toml:3: training.steps is now training.accumulation_steps, which the");
}

// What `coupler config update` writes after it has asked the plugins.
TEST(ConfigUpdate, OfAFileThatIsNotAccepted_LeavesIt_AndNamesIt) {
  const TemporaryFolder folder("config-update");
  const std::string path = folder.path() / "a.toml", old = "[training]\nseed = 1\n";
  std::ofstream(path) << old;
  const std::string problem = refusal([&] {
    write_config(path, "[training]\nseed = 2\n", /*force=*/true, [](const config::Config& config) {
      throw Error(ErrorCode::kConfig, config.sources.at("training.seed").text + ": no such seed",
                  {.hint = "guess"});
    });
  });
  EXPECT_SAYS(problem, path + ":2:1: no such seed; nothing was written");
  EXPECT_SAYS(problem, "hint: guess");
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), old);
  const std::filesystem::directory_iterator entries(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
  write_config(path, "[training]\nseed = 2\n", /*force=*/true, [](const config::Config&) {});
  EXPECT_EQ(config::load_config({.file = path, .environment = kNoVariables}).training.seed, 2);
}

}  // namespace
}  // namespace coupler::cli
