// coupler merge-weights and coupler checkpoint convert.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/folder_writer.h"
#include "checkpoint/manifest.h"
#include "formats/safetensors_header.h"
#include "formats/safetensors_writer.h"
#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

std::string fixture(const std::string& name) {
  return COUPLER_SOURCE_DIR "/tests/unit/core/weights/fixtures/" + name;
}

std::string bytes_in(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return fmt::format("{}", fmt::join(names, " "));
}

void write_part(const std::string& path, const std::string& tensor, const std::string& bytes,
                checkpoint::Manifest& manifest) {
  safetensors::Writer file(
      path, {{tensor, safetensors::DType::kU8, {static_cast<int64_t>(bytes.size())}}},
      {{checkpoint::kSaveKey, manifest.save}});
  file.write(tensor, bytes.data(), bytes.size());
  const WrittenFile written = file.finish();
  const std::string name = fs::path(path).filename();
  manifest.files.push_back({name, written.bytes, written.sha256, 0});
  manifest.state["sums"][name] = checkpoint::encode_sums(written.sums);
}

// Tensor 'w' of a model, [2, 5] of bytes, of which two ranks have each saved a part; and tensor 'v'
// of a second model.
std::string save_divided(const Workplace& here, int64_t number,
                         const std::string& text = "abcdefghij") {
  checkpoint::FolderWriter writer((here.path() / "checkpoints").string());
  const std::string folder = writer.begin(number);
  checkpoint::Manifest manifest;
  manifest.number = number;
  manifest.save = writer.save();
  manifest.world_size = 2;
  manifest.saved_at = "2026-11-22T15:04:05Z";
  manifest.state = {{"models",
                     {{{"tensors", {{"w", {"U8", {2, 5}}}}}, {"aliases", {{"tied", "w"}}}},
                      {{"tensors", {{"v", {"U8", {3}}}}}, {"aliases", nlohmann::json::object()}}}}};
  write_part(folder + "/model-00001-of-00002.safetensors", "w[0:4]", text.substr(0, 4), manifest);
  write_part(folder + "/model-00002-of-00002.safetensors", "w[4:10]", text.substr(4), manifest);
  write_part(folder + "/model_1.safetensors", "v", "xyz", manifest);
  return writer.commit(manifest);
}

std::string weights_file(const std::string& tensor, const std::string& shape,
                         const std::string& bytes, const std::string& metadata = "") {
  std::string header = fmt::format(
      R"({{"__metadata__":{{"format":"pt"{}}},"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})",
      metadata, tensor, shape, bytes.size());
  while (header.size() % 8 != 0) header += ' ';
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + bytes;
}

const std::string kMerged = weights_file("w", "2,5", "abcdefghij", R"(,"tied":"w")");

TEST(MergeWeights, OfACheckpoint_AreOneFile_OfTheWholeTensors) {
  const Workplace here;
  save_divided(here, 3);
  Outcome outcome = here.coupler({"merge-weights", "checkpoints/checkpoint_3", "out"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "out: 1 tensor, 10 B in 1 file.\n");
  EXPECT_EQ(names_in(here.path() / "out"), "model.safetensors");
  EXPECT_EQ(bytes_in(here.path() / "out/model.safetensors"), kMerged);
  // The newest checkpoint of a folder; another model; one file; and the same with convert.
  outcome = here.coupler({"merge-weights", "checkpoints", "a/b.safetensors", "--model", "1"});
  EXPECT_EQ(outcome.out, "a/b.safetensors: 1 tensor, 3 B in 1 file.\n") << outcome.err;
  EXPECT_EQ(bytes_in(here.path() / "a/b.safetensors"), weights_file("v", "3", "xyz"));
  outcome = here.coupler({"checkpoint", "convert", "checkpoints", "c.safetensors"});
  EXPECT_EQ(outcome.out, "c.safetensors: 1 tensor, 10 B in 1 file.\n") << outcome.err;
  EXPECT_EQ(bytes_in(here.path() / "c.safetensors"), kMerged);
}

TEST(MergeWeights, TheNewestThatIsValid_IsTaken_AndTheOthersAreNamed) {
  const Workplace here;
  save_divided(here, 1);
  fs::remove(save_divided(here, 2) + "/manifest.json");
  for (const char* command : {"merge-weights", "checkpoint convert"}) {
    std::vector<std::string> words = {command, "checkpoints", "out"};
    if (words[0] != "merge-weights") words = {"checkpoint", "convert", "checkpoints", "out"};
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, 0);
    expect_in(outcome.err, "coupler: skipping checkpoints/checkpoint_2: has no manifest.json");
    EXPECT_EQ(bytes_in(here.path() / "out/model.safetensors"), kMerged);
  }
}

TEST(MergeWeights, WithRemoveCheckpointDir_RemoveIt_OnceTheTargetIsThere) {
  const Workplace here;
  const std::string checkpoint = save_divided(here, 1);
  // Nothing is removed if nothing can be written.
  here.write("file", "text");
  for (const char* target : {"file", "checkpoints/checkpoint_1/out"}) {
    const Outcome outcome =
        here.coupler({"merge-weights", "checkpoints", target, "--remove_checkpoint_dir"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_TRUE(fs::exists(checkpoint + "/manifest.json"));
  }
  const Outcome outcome =
      here.coupler({"merge-weights", "checkpoints", "out", "--remove-checkpoint-dir"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "out: 1 tensor, 10 B in 1 file; removed checkpoints/checkpoint_1.\n");
  EXPECT_FALSE(fs::exists(checkpoint));
  EXPECT_EQ(bytes_in(here.path() / "out/model.safetensors"), kMerged);
}

TEST(MergeWeights, OfOtherPrograms_AreRefused_AndNothingIsRemoved) {
  const Workplace here;
  fs::copy(fixture("accelerate"), here.path() / "old");
  const Outcome outcome = here.coupler({"merge-weights", "old", "out", "--remove-checkpoint-dir"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err,
            "coupler: error: old is an Accelerate checkpoint (pytorch_model.bin next to "
            "optimizer.bin)\n  hint: 'coupler checkpoint convert' turns its weights into a "
            ".safetensors file that coupler::SafeTensors reads; the rest of another program's "
            "checkpoint cannot be read\n");
  EXPECT_TRUE(fs::exists(here.path() / "old/optimizer.bin"));
  EXPECT_FALSE(fs::exists(here.path() / "out"));
}

TEST(MergeWeights, OfADamagedCheckpoint_AreRefused_AndTheTargetStaysAsItWas) {
  const Workplace here;
  const std::string checkpoint = save_divided(here, 1);
  const std::string file = checkpoint + "/model-00002-of-00002.safetensors";
  std::string bytes = bytes_in(file);
  bytes.back() = 'X';
  std::ofstream(file, std::ios::binary) << bytes;
  fs::create_directory(here.path() / "out");
  here.write("out/model.safetensors", "old");
  const Outcome outcome = here.coupler({"merge-weights", checkpoint, "out"});
  EXPECT_EQ(outcome.exit_code, 1);
  expect_in(outcome.err, "its checksum differs");
  EXPECT_EQ(names_in(here.path() / "out"), "model.safetensors");
  EXPECT_EQ(bytes_in(here.path() / "out/model.safetensors"), "old");
}

TEST(MergeWeights, UnsafeSerialization_IsRefused_SayingWhy) {
  const Workplace here;
  save_divided(here, 1);
  const Outcome outcome =
      here.coupler({"merge-weights", "checkpoints", "out", "--unsafe_serialization"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "coupler: error: merge-weights: --unsafe-serialization is not supported: PyTorch's "
            "own format can carry code, so only safetensors is written\n  hint: read "
            "model.safetensors in Python with safetensors.torch.load_file\n");
}

TEST(ConvertCheckpoint, EachLayout_IsReadAsPythonSaysItIs) {
  const Workplace here;
  const struct {
    std::vector<std::string> words;
    std::string expected;
  } cases[] = {{{fixture("accelerate")}, "accelerate"},
               {{fixture("accelerate"), "--model=1"}, "accelerate_1"},
               {{fixture("deepspeed")}, "deepspeed"},
               {{fixture("universal")}, "universal"},
               {{fixture("nested/checkpoint.pth"), "--key", "state_dict"}, "nested"},
               {{fixture("numbered")}, "numbered"},
               {{fixture("numbered/pytorch_model.bin.index.json")}, "numbered"},
               {{fixture("strided/views.pt")}, "strided"}};
  const auto convert = [&](std::vector<std::string> words, const std::string& target) {
    words.insert(words.begin(), {"checkpoint", "convert"});
    words.push_back(target);
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  };
  for (const auto& [words, expected] : cases) {
    convert(words, "out.safetensors");
    // Rewrites Python's file, so that its metadata has the same order as ours.
    convert({fixture(expected + "/expected.safetensors")}, "expected.safetensors");
    EXPECT_TRUE(bytes_in(here.path() / "out.safetensors") ==
                bytes_in(here.path() / "expected.safetensors"))
        << expected;
  }
}

TEST(ConvertCheckpoint, WithASize_MakesFilesAndAnIndex_ThatPythonReads) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      {"checkpoint", "convert", fixture("universal"), "out", "--max_shard_size", "50B"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "out: 6 tensors, 136 B in 3 files.\n");
  EXPECT_EQ(names_in(here.path() / "out"),
            "model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
            "model-00003-of-00003.safetensors model.safetensors.index.json");
  const char* chosen = std::getenv("COUPLER_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  if (std::system((python + " -c 'import safetensors.numpy' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " has no safetensors (pip install safetensors numpy)";
  here.write("compare.py", R"(
import json, sys
from safetensors import safe_open
from safetensors.numpy import load_file
expected, out = load_file(sys.argv[1]), {}
index = json.load(open("out/model.safetensors.index.json"))
for name in set(index["weight_map"].values()):
    found = load_file("out/" + name)
    assert all(index["weight_map"][tensor] == name for tensor in found), name
    out.update(found)
assert set(index["weight_map"]) == set(out) == set(expected), (index, expected)
for name, value in expected.items():
    assert out[name].dtype == value.dtype and (out[name] == value).all(), name
with safe_open("out/" + index["weight_map"]["embedding.weight"], framework="np") as file:
    assert file.metadata() == {"format": "pt", "head.weight": "embedding.weight"}, file.metadata()
)");
  EXPECT_EQ(std::system(fmt::format("cd {} && {} compare.py {}", here.path().string(), python,
                                    fixture("universal/expected.safetensors"))
                            .c_str()),
            0);
}

TEST(ConvertCheckpoint, WhatIsNotRead_SaysWhatItIs_AndWhatToDo) {
  const Workplace here;
  for (const char* folder : {"zero3", "tp", "fsdp/pytorch_model_fsdp_0", "empty"})
    fs::create_directories(here.path() / folder);
  here.write("zero3/zero_pp_rank_0_mp_rank_00_model_states.pt", "");
  here.write("tp/mp_rank_00_model_states.pt", "");
  here.write("tp/mp_rank_01_model_states.pt", "");
  here.write("fsdp/pytorch_model_fsdp_0/.metadata", "");
  const struct {
    std::vector<std::string> words;
    const char* error;
    const char* hint;
  } cases[] = {
      {{"zero3"}, "zero3: its weights are sharded by ZeRO 3", "zero_to_fp32.py"},
      {{"tp"}, "(tensor parallel)", "ds_to_universal.py"},
      {{"fsdp"},
       "fsdp/pytorch_model_fsdp_0 is a torch.distributed.checkpoint",
       "accelerate merge-weights fsdp/pytorch_model_fsdp_0 FOLDER"},
      {{"empty"}, "empty has no weights in a known format", "name a .safetensors file"},
      {{"./nothing"}, "nothing does not exist", "check the path"},
      {{fixture("nested/checkpoint.pth")},
       "its root is not a state dict, but contains others",
       "name the dictionary with --key: 'state_dict', 'ema'"},
      {{fixture("nested/checkpoint.pth"), "--key", "model"},
       "it has no 'model'",
       "name the dictionary with --key: 'state_dict', 'ema'"},
      {{fixture("accelerate"), "--model", "5"}, "has no model 5", "count models from 0"},
      {{COUPLER_SOURCE_DIR "/tests/unit/core/formats/fixtures/torch/system.pt"},
       "the global 'posix.system' is not allowed",
       "load it with PyTorch"},
  };
  for (const auto& [words, error, hint] : cases) {
    std::vector<std::string> all = {"checkpoint", "convert"};
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back("out");
    const Outcome outcome = here.coupler(all);
    EXPECT_EQ(outcome.exit_code, 1) << words[0];
    EXPECT_EQ(outcome.out, "");
    expect_in(outcome.err, error);
    expect_in(outcome.err, std::string("\n  hint: "));
    expect_in(outcome.err, hint);
    EXPECT_FALSE(fs::exists(here.path() / "out")) << words[0];
  }
}

TEST(ConvertCheckpoint, OntoItsSource_IsRefused) {
  const Workplace here;
  here.write("model.safetensors", kMerged);
  for (const char* target : {"model.safetensors", ".", "./model.safetensors"}) {
    const Outcome outcome = here.coupler({"checkpoint", "convert", "model.safetensors", target});
    EXPECT_EQ(outcome.exit_code, 1);
    expect_in(outcome.err, "would replace model.safetensors, which is being read");
  }
  EXPECT_EQ(bytes_in(here.path() / "model.safetensors"), kMerged);
}

TEST(WeightCommands, WrongWords_EndWithTwo_AndTheNearestFlag) {
  const Workplace here;
  const struct {
    std::vector<std::string> words;
    const char* error;
  } cases[] = {
      {{"merge-weights", "a", "b", "--max-shard-sise", "1"},
       "merge-weights: unknown argument '--max-shard-sise'; did you mean '--max-shard-size'?"},
      {{"merge-weights", "a", "b", "--key", "x"}, "merge-weights: unknown argument '--key'"},
      {{"checkpoint", "convert", "a", "b", "--kei", "x"},
       "checkpoint convert: unknown argument '--kei'; did you mean '--key'?"},
      {{"checkpoint", "convert", "a", "b", "--remove-checkpoint-dir"},
       "checkpoint convert: unknown argument '--remove-checkpoint-dir'"},
      {{"merge-weights", "a"}, "merge-weights: TARGET is missing after 'a'"},
      {{"checkpoint", "convert"}, "checkpoint convert: SOURCE and TARGET are missing"},
      {{"merge-weights", "a", "b", "c"}, "merge-weights: 'c' is one argument too many"},
      {{"merge-weights", "a", "b", "--model"}, "merge-weights: --model needs a value"},
      {{"merge-weights", "a", "b", "--model", "-1"},
       "--model must be a number, counted from 0, not '-1'"},
      {{"merge-weights", "a", "b", "--model", "1", "--model=2"}, "--model is given twice"},
      {{"merge-weights", "a", "b", "--remove-checkpoint-dir=yes"},
       "--remove-checkpoint-dir takes no value"},
      {{"merge-weights", "a", "b", "--max-shard-size", "5gb"},
       "merge-weights: --max-shard-size: '5gb' is not a size"},
      {{"merge-weights", "a", "b.safetensors", "--max-shard-size", "5GB"},
       "'b.safetensors' is a single file, which --max-shard-size cannot split"},
      {{"checkpoint", "convert", "a", "b", "--key", ""}, "--key is empty"},
  };
  for (const auto& [words, error] : cases) {
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, 2) << error;
    expect_in(outcome.err, error);
    expect_in(outcome.err, "\n  hint: ");
  }
  const Outcome none = here.coupler({"merge-weights"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err, here.coupler({"merge-weights", "--help"}).out);
}

// A file system of 256 KiB in the test's own namespace.
TEST(WeightCommands, OnAFullDisk_LeaveTheTargetAsItWas) {
  const Workplace here;
  if (std::system("unshare -Urm true 2>/dev/null") != 0)
    GTEST_SKIP() << "unshare -Urm is not allowed here";
  const std::string bytes(200'000, 'x');
  std::string header =
      fmt::format(R"({{"w":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}})", bytes.size());
  here.write("in.safetensors", std::string(1, static_cast<char>(header.size())) +
                                   std::string(7, '\0') + header + bytes);
  here.write("old.safetensors", kMerged);
  fs::create_directory(here.path() / "disk");
  here.write("run.sh", R"(set -e
mount -t tmpfs -o size=256k none disk
mkdir disk/out
cp old.safetensors disk/out/model.safetensors
"$1" checkpoint convert in.safetensors disk/fits.safetensors
set +e
for target in disk/out disk/new.safetensors; do
  "$1" checkpoint convert in.safetensors $target 2>>err
  echo $? >>codes
done
cmp old.safetensors disk/out/model.safetensors && ls disk disk/out >names
)");
  ASSERT_EQ(std::system(fmt::format("cd {} && unshare -Urm sh run.sh {}/bin/coupler",
                                    here.path().string(), COUPLER_BINARY_DIR)
                            .c_str()),
            0);
  EXPECT_EQ(bytes_in(here.path() / "codes"), "1\n1\n");
  expect_in(bytes_in(here.path() / "err"),
            "cannot write disk/out/model.safetensors.new: No space left on device");
  expect_in(bytes_in(here.path() / "err"), "cannot write disk/new.safetensors.new: No space");
  EXPECT_EQ(bytes_in(here.path() / "names"),
            "disk:\nfits.safetensors\nout\n\ndisk/out:\nmodel.safetensors\n");
}

}  // namespace
}  // namespace coupler
