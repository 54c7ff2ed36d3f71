// explain_config: the table that `coupler config --explain` prints.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"

namespace coupler::config {

// Describes training.mixed_precision in words, for `coupler config --explain` and the Accelerator's
// startup line. Pure functions.

namespace {

constexpr const char* kRest =
    "parameters are stored, gradients reduced and optimizers run in the model's own types, "
    "unless the backend's options say otherwise";

// "autocast regions compute in bf16 …; parameters, … in the model's own types".
std::string describe_precision(const TrainingConfig& config) {
  const std::string& name = config.mixed_precision;
  if (name == "no") return fmt::format("everything computes in the model's own types; {}", kRest);
  const bool fp8 = name == "fp8";
  std::string text = fmt::format(
      "{}accelerator.autocast() compute in {} where that is safe (matrix products, convolutions), "
      "in fp32 where it is not (losses); {}",
      config.autocast == "auto" ? "loops over prepared data loaders and operations inside "
                                : "operations inside ",
      fp8 ? "bf16" : name, kRest);
  if (name == "fp16") {
    text += fmt::format(
        "; the loss scale starts at {} and is multiplied by {} after an overflow, by {} after {} "
        "steps without one",
        config.loss_scale_init_scale, config.loss_scale_backoff_factor,
        config.loss_scale_growth_factor, config.loss_scale_growth_interval);
  }
  if (fp8) {
    text += fmt::format(
        "; linear layers whose sizes are multiples of 16 multiply there in fp8: inputs and weights "
        "as e4m3, gradients as {}{}",
        config.fp8_format == "e4m3" ? "e4m3" : "e5m2",
        config.fp8_emulate ? "" : "; a device without fp8 matrix units is rejected at startup");
  }
  return text;
}

constexpr size_t kColumns = 5;
using Row = std::array<std::string, kColumns>;

std::string source_text(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "default" : found->second.text;
}

std::string sentence(const SchemaKey& key) {
  std::string text(key.doc);
  if (!key.constraint.empty()) text += fmt::format(" Must be {}.", key.constraint);
  return text;
}

std::vector<Row> rows_of(const Config& config) {
  std::vector<Row> rows = {{"KEY", "VALUE", "SOURCE", "DEFAULT", "MEANING"}};
  const Config defaults;
  for (const SchemaKey& key : schema()) {
    const std::string name(key.name);
    rows.push_back({name, render(key.get(config)), source_text(config, name),
                    render(key.get(defaults)), sentence(key)});
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const PluginOption& option : options) {
      rows.push_back({"backend." + plugin + "." + option.key, render(option.value),
                      option.source.text, "-", "Option of the backend " + plugin + "."});
    }
  }
  return rows;
}

}  // namespace

std::string explain_config(const Config& config) {
  const std::vector<Row> rows = rows_of(config);
  std::array<size_t, kColumns> widths = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = config.file.empty() ? "No configuration file.\n"
                                         : "Configuration file: " + config.file + "\n";
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < kColumns; ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  text += "Mixed precision " + config.training.mixed_precision + ": " +
          describe_precision(config.training) + "\n";
  return text;
}

}  // namespace coupler::config
