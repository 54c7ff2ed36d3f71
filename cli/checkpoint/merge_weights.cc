// coupler merge-weights and coupler checkpoint convert: write the weights of a checkpoint for other
// programs.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "base/text.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "checkpoint/folders.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/text/command.h"
#include "hub/model_files.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler::cli {
namespace {

constexpr Option kShardSize = {
    "--max-shard-size SIZE",
    "split into files of at most SIZE, such as 5GB or 512MiB, with an index"};

size_t model_of(const Arguments& arguments) {
  constexpr size_t kMaxModels = 1'000'000;
  const std::string text = arguments.value("--model", "0");
  const auto model = to_number<size_t>(text);
  if (!model || *model > kMaxModels)
    arguments.refuse(fmt::format("--model must be a number, counted from 0, not '{}'", text),
                     "--model");
  return *model;
}

// Refuses a command line that cannot be carried out before anything is read. Nothing without the
// option.
std::optional<uint64_t> shard_size_of(const Arguments& arguments) {
  const std::string target = arguments.place(1);
  if (arguments.place(0).empty() || target.empty())
    arguments.refuse("a path is empty", arguments.command);
  if (!arguments.has("--max-shard-size")) return std::nullopt;
  if (weights::is_one_file(target))
    arguments.refuse(
        fmt::format("'{}' is a single file, which --max-shard-size cannot split; name a folder",
                    target),
        target);
  return arguments.byte_size("--max-shard-size");
}

// "out: 12 tensors, 1.5 GiB in 2 files".
std::string written_text(const std::string& target, const weights::WrittenWeights& written) {
  const auto counted = [](size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format("{}: {}, {} in {}", target, counted(written.tensors, "tensor"),
                     format_byte_size(written.bytes), counted(written.files, "file"));
}

int run_merge_weights(const Arguments& arguments) {
  if (arguments.has("--unsafe-serialization"))
    arguments.refuse(
        "--unsafe-serialization is not supported: PyTorch's own format can carry "
        "code, so only safetensors is written",
        "--unsafe-serialization",
        "read model.safetensors in Python with safetensors.torch.load_file");
  const size_t model = model_of(arguments);
  const auto shard_size = shard_size_of(arguments);
  const std::string target = arguments.place(1);
  const std::string found = find_checkpoint(arguments.place(0));
  checkpoint::open_checkpoint(found);  // throws for another program's checkpoint, naming it
  const weights::WeightSource source = weights::open_weights(found, {.model = model, .key = {}});
  const weights::WrittenWeights written = weights::write_weights(source, target, shard_size);
  const bool removed = arguments.has("--remove-checkpoint-dir");
  if (removed) checkpoint::remove_folder(found);
  std::printf("%s%s.\n", written_text(target, written).c_str(),
              removed ? fmt::format("; removed {}", found).c_str() : "");
  return 0;
}

int convert_checkpoint(const Arguments& arguments) {
  const size_t model = model_of(arguments);
  const std::string key = arguments.value("--key");
  if (arguments.has("--key") && key.empty()) arguments.refuse("--key is empty", "--key");
  const auto shard_size = shard_size_of(arguments);
  const std::string path = hub::model_folder(arguments.place(0), hub::ModelUse::kWeights);
  const std::string target = arguments.place(1);
  // A folder of Coupler checkpoints stands for the newest valid one in it.
  const weights::WeightSource source = weights::open_weights(
      holds_checkpoints(path) ? find_checkpoint(path) : path, {.model = model, .key = key});
  const weights::WrittenWeights written = weights::write_weights(source, target, shard_size);
  std::printf("%s.\n", written_text(target, written).c_str());
  return 0;
}

}  // namespace

Command convert_command() {
  return {
      .name = "convert",
      .summary =
          "write a model's weights as safetensors: to a single file if TARGET ends in "
          ".safetensors, otherwise to TARGET/model.safetensors",
      .forms = {"SOURCE TARGET"},
      .options = {kShardSize,
                  {"--model N", "convert the N-th of several saved models, counted from 0"},
                  {"--key NAME", "the state dict's key in a torch.save file, such as state_dict"}},
      .run = convert_checkpoint};
}

Command merge_weights_command() {
  return {
      .name = "merge-weights",
      .summary = "merge a checkpoint's weights for other programs",
      .forms = {"SOURCE TARGET"},
      .options = {kShardSize,
                  {"--model N", "merge the N-th of several saved models, counted from 0"},
                  {"--remove-checkpoint-dir", "remove the checkpoint once TARGET is on disk"},
                  {"--unsafe-serialization", ""}},
      .description =
          {"Merges a model's weights, which the processes of a job saved in shards, into "
           "safetensors files that other programs can read. Checksums are verified while reading.",
           "SOURCE is a Coupler checkpoint, or a folder of them, whose newest valid one is used. "
           "TARGET is a single file if its name ends in .safetensors, otherwise a folder, to which "
           "model.safetensors is written."},
      .notes = {"For Accelerate and DeepSpeed checkpoints, use 'coupler checkpoint convert'."},
      .examples = {"coupler merge-weights checkpoints model.safetensors"},
      .run = run_merge_weights};
}

}  // namespace coupler::cli
