#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/durable_file.h"
#include "checkpoint/folder_writer.h"
#include "formats/safetensors_writer.h"
#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

// Two tensors: 'bias' F32 [2] and 'count' I64 [].
std::string safetensors_file() {
  std::string header = R"({"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("count":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  return text + header + std::string(16, 'x');
}

std::string save_checkpoint(const Workplace& here, int64_t number, const std::string& weights) {
  checkpoint::FolderWriter writer((here.path() / "checkpoints").string());
  const std::string folder = writer.begin(number);
  DurableFile file(folder + "/model.safetensors");
  file.write(weights.data(), weights.size());
  const WrittenFile written = file.finish();
  checkpoint::Manifest manifest;
  manifest.number = number;
  manifest.save = writer.save();
  manifest.steps = 10 * number;
  manifest.world_size = 4;
  manifest.backend = "gloo_cpu";
  manifest.plan = "zero1";
  manifest.coupler_version = "1.2.3";
  manifest.libtorch_version = "2.9.0";
  manifest.saved_at = "2026-11-22T15:04:05Z";
  manifest.state = {{"epoch", 2}, {"name", "a\x1b[31m"}};
  manifest.files = {{"model.safetensors", written.bytes, written.sha256}};
  return writer.commit(manifest);
}

TEST(CheckpointCommand, List_ShowsEach_AndWhyOneIsNotValid) {
  const Workplace here;
  save_checkpoint(here, 1, safetensors_file());
  fs::remove(save_checkpoint(here, 2, "") + "/manifest.json");
  const Outcome outcome = here.coupler({"checkpoint", "list"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out,
            "NUMBER  STEPS  PROCESSES  BACKEND   SAVED AT              SIZE   VALID\n"
            "1       10     4          gloo_cpu  2026-11-22T15:04:05Z  138 B  yes\n"
            "2       -      -          -         -                     -      no: has no "
            "manifest.json: it is an unfinished checkpoint or something else\n");
  EXPECT_EQ(here.coupler({"checkpoint", "list", "checkpoints"}).out, outcome.out);
}

TEST(CheckpointCommand, ListOfAnythingElse_SaysWhatItIs) {
  const Workplace here;
  Outcome outcome = here.coupler({"checkpoint", "list"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(
      outcome.err,
      "coupler: error: checkpoints does not exist\n  hint: no checkpoint was saved there yet\n");
  fs::create_directory(here.path() / "checkpoints");
  EXPECT_EQ(here.coupler({"checkpoint", "list"}).out, "No checkpoints in checkpoints.\n");
  save_checkpoint(here, 1, "");
  outcome = here.coupler({"checkpoint", "list", "checkpoints/checkpoint_1"});
  EXPECT_EQ(outcome.exit_code, 2);
  expect_in(outcome.err,
            "checkpoints/checkpoint_1 is a single checkpoint, not a folder of checkpoints");
}

TEST(CheckpointCommand, Show_SaysWhatIsInIt_WithItsTensors) {
  const Workplace here;
  save_checkpoint(here, 1, safetensors_file());
  const Outcome outcome = here.coupler({"checkpoint", "show"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"Checkpoint  checkpoints/checkpoint_1\n", "Steps       10\n", "Plan        zero1\n",
        "Size        138 B in 1 file\n", "epoch  2\n", "name   \"a\\u001b[31m\"\n",
        "FILE               SIZE   SHA-256\nmodel.safetensors  138 B  ",
        "\nmodel.safetensors\nTENSOR  DTYPE  SHAPE  SIZE\nbias    F32    [2]    8 B\n",
        "\ncount   I64    []     8 B\n"})
    expect_in(outcome.out, part);
  EXPECT_EQ(here.coupler({"checkpoint", "show", "checkpoints/checkpoint_1"}).out, outcome.out);
}

TEST(CheckpointCommand, ShowOfAFileThatIsNoSafetensors_SaysSo_AndFails) {
  const Workplace here;
  save_checkpoint(here, 1, "text");
  const Outcome outcome = here.coupler({"checkpoint", "show"});
  EXPECT_EQ(outcome.exit_code, 1);
  expect_in(outcome.out, "cannot be read: checkpoints/checkpoint_1/model.safetensors: ");
}

TEST(CheckpointCommand, TheNewestThatIsValid_IsTaken_AndTheOthersAreNamed) {
  const Workplace here;
  save_checkpoint(here, 1, safetensors_file());
  fs::remove(save_checkpoint(here, 2, "") + "/model.safetensors");
  const Outcome outcome = here.coupler({"checkpoint", "verify"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "checkpoints/checkpoint_1: 138 B in 1 file, all as saved.\n");
  EXPECT_EQ(outcome.err,
            "coupler: skipping checkpoints/checkpoint_2: model.safetensors is missing\n");
  fs::remove_all(here.path() / "checkpoints/checkpoint_1");
  const Outcome none = here.coupler({"checkpoint", "verify"});
  EXPECT_EQ(none.exit_code, 1);
  expect_in(none.err, "coupler: error: checkpoints holds no valid checkpoint\n");
}

TEST(CheckpointCommand, Verify_NamesTheFileThatDiffers) {
  const Workplace here;
  const std::string path = save_checkpoint(here, 1, "weights");
  std::ofstream(path + "/model.safetensors") << "Weights";
  const Outcome outcome = here.coupler({"checkpoint", "verify", path});
  EXPECT_EQ(outcome.exit_code, 1);
  expect_in(outcome.out, path + "/model.safetensors differs: its SHA-256 is ");
  fs::remove(path + "/model.safetensors");
  EXPECT_EQ(here.coupler({"checkpoint", "verify", path}).out,
            path + "/model.safetensors is missing\n");
}

// Saves the pieces of two ranks as a job does.
std::string save_pieces(const Workplace& here, int64_t number) {
  checkpoint::FolderWriter writer((here.path() / "checkpoints").string());
  const std::string folder = writer.begin(number);
  checkpoint::Manifest manifest;
  manifest.number = number;
  manifest.save = writer.save();
  manifest.world_size = 2;
  manifest.saved_at = "2026-11-22T15:04:05Z";
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = fmt::format("model-0000{}-of-00002.safetensors", rank + 1);
    safetensors::Writer file(folder + "/" + name, {{"w", safetensors::DType::kU8, {3}}},
                             {{checkpoint::kSaveKey, writer.save()}});
    file.write("w", "abc", 3);
    const WrittenFile written = file.finish();
    manifest.files.push_back({name, written.bytes, written.sha256, rank});
  }
  return writer.commit(manifest);
}

// The program of docs/checkpoints.md.
std::string python_program() {
  const std::string page = text_of(COUPLER_SOURCE_DIR "/docs/checkpoints.md");
  const size_t begin = page.find("```python\n") + 10;
  return page.substr(begin, page.find("```", begin) - begin);
}

TEST(CheckpointCommand, APieceOfAnotherSave_IsNamed_ByVerifyListAndThePagesProgram) {
  const Workplace here;
  const std::string first = save_pieces(here, 1), second = save_pieces(here, 2);
  const auto in_python = [&](const std::string& path) {
    return here.run("/usr/bin/env", {"python3", "-c", python_program(), path});
  };
  EXPECT_EQ(in_python(second).exit_code, 0) << in_python(second).err;
  EXPECT_EQ(here.coupler({"checkpoint", "verify", second}).exit_code, 0);
  const std::string name = "/model-00002-of-00002.safetensors";
  fs::copy_file(first + name, second + name, fs::copy_options::overwrite_existing);
  const auto identity = [](const std::string& path) {
    return nlohmann::json::parse(text_of(path + "/manifest.json"))["save"].get<std::string>();
  };
  const std::string reason =
      fmt::format("belongs to save {}, not to save {} for which rank 1 wrote it", identity(first),
                  identity(second));
  const Outcome verified = here.coupler({"checkpoint", "verify", second});
  EXPECT_EQ(verified.exit_code, 1);
  expect_in(verified.out + verified.err, reason);
  expect_in(here.coupler({"checkpoint", "list"}).out, reason);
  EXPECT_NE(in_python(second).exit_code, 0);
  expect_in(in_python(second).err, "AssertionError");
  EXPECT_EQ(in_python(first).exit_code, 0);
}

TEST(CheckpointCommand, OtherProgramsCheckpoint_SaysWhatItIs) {
  const Workplace here;
  here.write("old/model.safetensors", "");
  here.write("old/optimizer.bin", "");
  for (const char* word : {"show", "verify"}) {
    const Outcome outcome = here.coupler({"checkpoint", word, "old"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.err,
              "coupler: error: old is an Accelerate checkpoint (model.safetensors next to "
              "optimizer.bin)\n  hint: 'coupler checkpoint convert' turns its weights into a "
              ".safetensors file that coupler::SafeTensors reads; the rest of another program's "
              "checkpoint cannot be read\n");
  }
}

TEST(CheckpointCommand, WrongWords_EndWithTwo_AndTheValidOnes) {
  const Workplace here;
  const Outcome outcome = here.coupler({"checkpoint", "verfy"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(
      outcome.err,
      "coupler: error: checkpoint: unknown subcommand 'verfy'; did you mean 'verify'?; valid: "
      "list, show, verify, convert\n  hint: see 'coupler checkpoint --help'\n");
  EXPECT_EQ(here.coupler({"checkpoint", "list", "--all"}).exit_code, 2);
  EXPECT_EQ(here.coupler({"checkpoint", "list", "a", "b"}).exit_code, 2);
  const Outcome none = here.coupler({"checkpoint"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err, here.coupler({"checkpoint", "--help"}).out);
}

TEST(CheckpointCommand, Json_SaysTheSame_ToPrograms) {
  const Workplace here;
  const std::string saved = save_checkpoint(here, 1, safetensors_file());
  fs::remove(save_checkpoint(here, 2, "") + "/manifest.json");
  const auto json_of = [&](const std::vector<std::string>& words, int code) {
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto list = json_of({"checkpoint", "list", "--json"}, 0);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["backend"], "gloo_cpu");
  EXPECT_EQ(list[0]["processes"], 4);
  EXPECT_TRUE(list[0]["valid"]);
  EXPECT_FALSE(list[1]["valid"]);
  expect_in(list[1]["reason"], "has no manifest.json");

  const auto for_message = json_of({"checkpoint", "show", "--json", saved}, 0);
  EXPECT_EQ(for_message["state"]["name"], "a\x1b[31m") << "JSON has the name unchanged";
  const auto& file = for_message["files"].at(0);
  EXPECT_EQ(file["bytes"], safetensors_file().size());
  EXPECT_EQ(file["tensors"].at(0)["name"], "bias");
  EXPECT_EQ(file["tensors"].at(0)["shape"], nlohmann::json({2}));
  EXPECT_EQ(file["tensors"].at(1)["dtype"], "I64");

  EXPECT_TRUE(json_of({"checkpoint", "verify", saved, "--json"}, 0)["as_saved"]);
  std::string changed = safetensors_file();
  changed.back() = 'y';
  std::ofstream(saved + "/model.safetensors", std::ios::binary) << changed;
  const auto verified = json_of({"checkpoint", "verify", saved, "--json"}, 1);
  EXPECT_FALSE(verified["as_saved"]);
  EXPECT_EQ(verified["differences"].at(0)["file"], "model.safetensors");

  EXPECT_EQ(json_of({"checkpoint", "list", "--json", here.path().string()}, 0).size(), 0U);
}

}  // namespace
}  // namespace coupler
