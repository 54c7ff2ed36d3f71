// coupler merge-weights: writes the weights of a Coupler checkpoint for other programs.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/folders.h"
#include "cli/checkpoint/find_checkpoint.h"
#include "cli/checkpoint/weight_arguments.h"
#include "cli/commands.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler::cli {

const char kMergeWeightsHelp[] =
    R"help(usage: coupler merge-weights SOURCE TARGET [--max-shard-size SIZE] [--model N]
                             [--remove-checkpoint-dir]

Merges a model's weights, which the processes of a job saved in shards, into safetensors files that
other programs can read. Checksums are verified while reading.

SOURCE is a Coupler checkpoint, or a folder of them, whose newest valid one is used. TARGET is a
single file if its name ends in .safetensors, otherwise a folder, to which model.safetensors is
written.

  --max-shard-size SIZE    split into files of at most SIZE, such as 5GB or 512MiB, with an index
  --model N                merge the N-th of several saved models, counted from 0
  --remove-checkpoint-dir  remove the checkpoint once TARGET is on disk

For Accelerate and DeepSpeed checkpoints, use 'coupler checkpoint convert'.

  coupler merge-weights checkpoints model.safetensors
)help";

namespace {

const std::vector<WeightFlag> kMergeFlags = {{"--max-shard-size", true},
                                             {"--model", true},
                                             {"--remove-checkpoint-dir"},
                                             {"--unsafe-serialization"}};

}  // namespace

int run_merge_weights(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::any_of(words.begin(), words.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    std::fputs(kMergeWeightsHelp, stdout);
    return 0;
  }
  if (words.empty()) {
    std::fputs(kMergeWeightsHelp, stderr);
    return 2;
  }
  const WeightArguments arguments = read_weight_arguments("merge-weights", words, kMergeFlags);
  if (arguments.has("--unsafe-serialization"))
    throw Error(ErrorCode::kUsage,
                "merge-weights: --unsafe-serialization is not supported: PyTorch's own format can "
                "carry code, so only safetensors is written",
                {.subject = "--unsafe-serialization",
                 .hint = "read model.safetensors in Python with safetensors.torch.load_file"});
  const std::string found = find_checkpoint(arguments.source);
  checkpoint::open_checkpoint(found);  // throws for another program's checkpoint, naming it
  const WeightSource source = open_weights(found, {.model = arguments.model, .key = {}});
  const WrittenWeights written = write_weights(source, arguments.target, arguments.max_shard_size);
  const bool removed = arguments.has("--remove-checkpoint-dir");
  if (removed) checkpoint::remove_folder(found);
  std::printf("%s%s.\n", written_text(arguments.target, written).c_str(),
              removed ? fmt::format("; removed {}", found).c_str() : "");
  return 0;
}

}  // namespace coupler::cli
