#include "cli/checkpoint/checkpoint_convert.h"

#include <cstdio>

#include "cli/checkpoint/find_checkpoint.h"
#include "cli/checkpoint/weight_arguments.h"
#include "weights/open_weights.h"
#include "weights/write_weights.h"

namespace coupler::cli {
namespace {

const std::vector<WeightFlag> kConvertFlags = {
    {"--max-shard-size", true}, {"--model", true}, {"--key", true}};

}  // namespace

int convert_checkpoint(const std::vector<std::string>& words) {
  const WeightArguments arguments =
      read_weight_arguments("checkpoint convert", {words.begin() + 1, words.end()}, kConvertFlags);
  // A folder of Coupler checkpoints stands for the newest valid one in it.
  const std::string found =
      holds_checkpoints(arguments.source) ? find_checkpoint(arguments.source) : arguments.source;
  const WeightSource source = open_weights(found, {.model = arguments.model, .key = arguments.key});
  const WrittenWeights written = write_weights(source, arguments.target, arguments.max_shard_size);
  std::printf("%s.\n", written_text(arguments.target, written).c_str());
  return 0;
}

}  // namespace coupler::cli
