// coupler estimate: how much memory a training program, a checkpoint or a model needs per rank.
#include <coupler/error.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/estimate/estimate_model.h"
#include "cli/estimate/estimate_program.h"
#include "cli/estimate/estimate_report.h"
#include "cli/estimate/estimate_words.h"
#include "estimate/settings.h"

namespace coupler::cli {

const char kEstimateHelp[] = R"help(usage: coupler estimate [OPTION]... -- PROGRAM [ARGUMENT]...
       coupler estimate [OPTION]... PATH

Estimates the peak memory of each rank of a training job, and what it is used for.

PROGRAM is run unmodified, as one process, on tensors without memory, for two steps. This takes
about a second, whatever the model's size. PATH is a checkpoint (a folder, a *.safetensors file or
an index), of which only headers are read, or a Hugging Face config.json. For a PATH, activations
are not counted.

  --world N       assume N processes on one machine instead of launch.processes
  --all           estimate every backend and stage, with mixed precision no and bf16, with and
                  without activation checkpointing, instead of the configured setting
  --limit SIZE    report what fits within SIZE, such as 4GiB (default: memory.limit, if set)
  --disk FOLDER   where settings that use a disk would keep state; nothing is written there
  --json          print JSON, in bytes, instead of a table
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one configuration key

`coupler config recommend` picks the fastest setting that fits.

  coupler estimate --world 4 -- ./train
)help";

namespace {

std::vector<EstimateRow> rows_of_program(const EstimateWords& words, const Config& config) {
  ProgramEstimates estimates(words, config);
  if (!words.all) return {estimates.configured()};
  std::vector<EstimateRow> rows;
  for (const char* precision : {"no", "bf16"}) {
    for (const bool checkpointing : {false, true}) {
      if (checkpointing && estimates.pattern().empty()) continue;
      for (const Setting& setting : known_settings(config.backend, words.disk)) {
        rows.push_back(estimates.of(setting, precision, checkpointing));
      }
    }
  }
  return rows;
}

}  // namespace

int run_estimate(int argc, char** argv) {
  const EstimateWords words = read_estimate_words("estimate", argc, argv);
  if (words.help) {
    std::fputs(kEstimateHelp, stdout);
    return 0;
  }
  if (words.path.empty() && words.program.empty()) {
    std::fputs(kEstimateHelp, stderr);
    return 2;
  }
  const Config config = load_config(words.config);
  const uint64_t limit = words.limit != 0 ? words.limit : memory_limit_of(config);
  if (words.path.empty()) {
    const auto rows = rows_of_program(words, config);
    const std::string text = words.json ? estimate_json(rows, limit) : estimate_text(rows, limit);
    std::fputs(text.c_str(), stdout);
  } else {
    std::fputs(estimate_model(words, config, limit).c_str(), stdout);
  }
  return 0;
}

}  // namespace coupler::cli
