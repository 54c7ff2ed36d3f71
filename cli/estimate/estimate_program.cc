#include "cli/estimate/estimate_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/estimate/dry_run.h"

namespace coupler::cli {
namespace {

std::string joined(const std::vector<std::string>& patterns) {
  return fmt::format("{}", fmt::join(patterns, ":"));
}

std::string setting_name(const BackendConfig& backend) {
  const auto found = backend.options.find(backend.use);
  std::string text = backend.use == "auto" ? "replicate" : backend.use;
  if (found == backend.options.end()) return text;
  for (const PluginOption& option : found->second) {
    if (option.key != "stage" && option.key != "strategy" && option.key.rfind("offload", 0) != 0) {
      continue;
    }
    text += fmt::format(
        ", {} {}", option.key,
        std::visit([](const auto& value) { return fmt::format("{}", value); }, option.value));
  }
  return text;
}

}  // namespace

ProgramEstimates::ProgramEstimates(const EstimateWords& words, const Config& config)
    : words_(words),
      config_(config),
      world_(static_cast<int>(words.world > 0 ? words.world : config.launch.processes)) {}

const StepLog& ProgramEstimates::log(const std::string& precision, const std::string& pattern) {
  const auto key = std::make_pair(precision, pattern);
  const auto known = logs_.find(key);
  if (known != logs_.end()) return known->second;
  const std::vector<std::string> overrides = {
      fmt::format("training.mixed_precision={}", precision),
      fmt::format("memory.activation_checkpointing={}", pattern.empty() ? "[]" : pattern)};
  return logs_.emplace(key, run_dry(words_.program, words_.config, overrides)).first->second;
}

EstimateRow ProgramEstimates::configured() {
  const std::string pattern = joined(config_.memory.activation_checkpointing);
  const std::string& precision = config_.training.mixed_precision;
  return {.setting = setting_name(config_.backend),
          .precision = precision,
          .checkpointing = pattern,
          .world = world_,
          .memory = estimate_memory(log(precision, pattern), config_.backend, world_,
                                    config_.communication, config_.memory)};
}

std::string ProgramEstimates::pattern() {
  if (!config_.memory.activation_checkpointing.empty()) {
    return joined(config_.memory.activation_checkpointing);
  }
  const StepLog& plain = log(config_.training.mixed_precision, "");
  return plain.models.size() == 1 ? repeated_modules(plain.models[0]) : "";
}

EstimateRow ProgramEstimates::of(const Setting& setting, const std::string& precision,
                                 bool checkpointing) {
  const std::string patterns = checkpointing ? pattern() : "";
  return {.setting = setting.name,
          .precision = precision,
          .checkpointing = patterns,
          .world = world_,
          .memory = estimate_memory(log(precision, patterns), apply(setting, config_.backend),
                                    world_, config_.communication)};
}

}  // namespace coupler::cli
