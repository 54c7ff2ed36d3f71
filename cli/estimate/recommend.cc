// coupler config recommend: the fastest setting that fits in memory.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/estimate/estimate.h"
#include "cli/estimate/estimate_program.h"

namespace coupler::cli {

namespace {

std::string toml_value(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("\"{}\"", *text);
  return std::visit([](const auto& other) { return fmt::format("{}", other); }, value);
}

std::string toml_of(const Setting& setting, const EstimateRow& row, uint64_t limit) {
  std::string text =
      fmt::format("# {}: an estimated {} of {} per rank\n[backend]\nuse = \"{}\"\n", setting.name,
                  format_byte_size(row.memory.peak), format_byte_size(limit), setting.use);
  if (!setting.options.empty()) text += fmt::format("\n[backend.{}]\n", setting.use);
  for (const auto& [key, value] : setting.options) {
    text += fmt::format("{} = {}\n", key, toml_value(value));
  }
  if (row.precision != "no") {
    text += fmt::format("\n[training]\nmixed_precision = \"{}\"\n", row.precision);
  }
  if (!row.checkpointing.empty()) {
    text += fmt::format("\n[memory]\nactivation_checkpointing = [\"{}\"]\n", row.checkpointing);
  }
  return text + fmt::format("\n[launch]\nprocesses = {}\n", row.world);
}

int run_recommend(const Arguments& arguments) {
  const EstimateRequest request = read_estimate_request(arguments);
  const Config config = load_config(request.config);
  ProgramEstimates estimates(request, config);
  const std::string& precision = config.training.mixed_precision;
  const std::vector<Setting> settings = known_settings(config.backend, request.disk);
  uint64_t least = UINT64_MAX;
  std::string least_name;
  for (const bool disk : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      if (checkpointing && estimates.pattern().empty()) continue;
      for (const Setting& setting : settings) {
        if (setting.needs_disk != disk) continue;
        const EstimateRow row = estimates.of(setting, precision, checkpointing);
        if (row.memory.peak <= request.limit) {
          std::fputs(toml_of(setting, row, request.limit).c_str(), stdout);
          return 0;
        }
        if (row.memory.peak >= least) continue;
        least = row.memory.peak;
        least_name = setting.name + (checkpointing ? ", activation checkpointing" : "");
      }
    }
  }
  throw Error(
      ErrorCode::kConfig,
      fmt::format(
          "no setting fits within {} per rank with {} processes: the smallest, {}, needs {}",
          format_byte_size(request.limit), estimates.world(), least_name, format_byte_size(least)),
      {.subject = "--limit",
       .hint = "use more processes (--world), a smaller batch, or more memory"});
}

}  // namespace

Command recommend_command() {
  return {
      .name = "recommend",
      .summary = "print the fastest configuration that fits in memory",
      .forms = {"-- PROGRAM [ARGUMENT]..."},
      .options =
          {{.spec = "--limit SIZE", .doc = "the memory per rank, such as 4GiB", .required = true},
           {"--world N", "assume N processes on one machine instead of launch.processes"},
           {"--disk FOLDER", "where settings that use a disk keep state (default: /scratch)"}},
      .config = true,
      .description = {"Prints the configuration with which PROGRAM trains fastest within the given "
                      "memory per rank. PROGRAM is run on tensors without memory (see coupler "
                      "estimate). Settings are tried from fastest to slowest: replicated models "
                      "first, then sharded ones, then activation checkpointing, and disks last."},
      .examples = {"coupler config recommend --limit 4GiB -- ./train"},
      .run = run_recommend};
}

}  // namespace coupler::cli
