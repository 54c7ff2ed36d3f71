#include "cli/estimate/estimate_program.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "cli/launch/rank_environment.h"
#include "cli/process/capture_output.h"
#include "cli/process/child_process.h"
#include "config/config.h"
#include "estimate/step_log.h"

namespace coupler::cli {

// Runs a training program on tensors without memory, for coupler estimate. Single-threaded.

namespace {

UniqueFd memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, 0));
  if (file.get() < 0) throw Error(ErrorCode::kIo, "cannot create a memory file for a dry run");
  return file;
}

std::string read_whole(const UniqueFd& file) {
  std::string text;
  char block[65536];
  for (off_t at = 0;;) {
    const ssize_t count = ::pread(file.get(), block, sizeof block, at);
    if (count <= 0) return text;
    text.append(block, static_cast<size_t>(count));
    at += count;
  }
}

std::vector<std::string> environment(const config::ConfigRequest& config,
                                     const std::vector<std::string>& more, int log) {
  std::vector<std::string> overrides = config.overrides;
  overrides.insert(overrides.end(), more.begin(), more.end());
  Variables added = {{"COUPLER_OVERRIDES", joined_overrides(overrides)},
                     {"COUPLER_ESTIMATE", fmt::format("/dev/fd/{}", log)}};
  if (config.file) {
    added["COUPLER_CONFIG_FILE"] = std::filesystem::absolute(*config.file).string();
  }
  return environment_with(added);
}

// Runs the program as one process. config: the file and overrides of the command line; more:
// overrides that follow them. If the program fails, its output goes to standard error. Throws Error
// naming what it failed to do.
estimate::StepLog run_dry(const std::vector<std::string>& program,
                          const config::ConfigRequest& config,
                          const std::vector<std::string>& more) {
  const UniqueFd log = memory_file("coupler-estimate"), output = memory_file("coupler-output");
  ChildCommand command;
  command.path = find_program(program.at(0));
  command.arguments = program;
  command.environment = environment(config, more, log.get());
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  command.standard_input = input.get();
  command.standard_output = command.standard_error = output.get();
  sigemptyset(&command.signal_mask);
  ChildProcess child(command);
  child.let_go();
  if (const int failure = child.exec_failure(); failure != 0) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' cannot be started: {}", program[0], std::strerror(failure)),
                {.subject = program[0]});
  }
  const int status = child.reap();
  const std::string text = read_whole(log);
  if (!text.empty()) return estimate::read_step_log(text);
  const std::string said = read_whole(output);
  std::fwrite(said.data(), 1, said.size(), stderr);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const bool made_no_step = code == 0;
  throw Error(
      made_no_step ? ErrorCode::kUsage : ErrorCode::kUnsupported,
      made_no_step ? fmt::format("'{}' ended without a dry run of two optimizer steps", program[0])
                   : fmt::format("'{}' ended with code {} in its dry run", program[0], code),
      {.subject = program[0],
       .hint = made_no_step
                   ? "it must prepare its model and optimizer with coupler::Accelerator and "
                     "take two steps; give it more steps or samples"
                   : "see its output above; tensors have no values in a dry run"});
}

std::string joined(const std::vector<std::string>& patterns) {
  return fmt::format("{}", fmt::join(patterns, ":"));
}

std::string setting_name(const config::BackendConfig& backend) {
  const auto found = backend.options.find(backend.use);
  std::string text = backend.use == "auto" ? "replicate" : backend.use;
  if (found == backend.options.end()) return text;
  for (const config::PluginOption& option : found->second) {
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

ProgramEstimates::ProgramEstimates(const EstimateRequest& request, const config::Config& config)
    : request_(request),
      config_(config),
      world_size_(static_cast<int>(request.world_size > 0 ? request.world_size
                                                          : config.launch.processes)) {}

const estimate::StepLog& ProgramEstimates::log(const std::string& precision,
                                               const std::string& pattern) {
  const auto key = std::make_pair(precision, pattern);
  const auto known = logs_.find(key);
  if (known != logs_.end()) return known->second;
  const std::vector<std::string> overrides = {
      fmt::format("training.mixed_precision={}", precision),
      fmt::format("memory.activation_checkpointing={}", pattern.empty() ? "[]" : pattern)};
  return logs_.emplace(key, run_dry(request_.program, request_.config, overrides)).first->second;
}

EstimateRow ProgramEstimates::configured() {
  const std::string pattern = joined(config_.memory.activation_checkpointing);
  const std::string& precision = config_.training.mixed_precision;
  return {.setting = setting_name(config_.backend),
          .precision = precision,
          .checkpointing = pattern,
          .world_size = world_size_,
          .memory = estimate::estimate_memory(log(precision, pattern), config_.backend, world_size_,
                                              config_.communication, config_.memory)};
}

std::string ProgramEstimates::pattern() {
  if (!config_.memory.activation_checkpointing.empty()) {
    return joined(config_.memory.activation_checkpointing);
  }
  const estimate::StepLog& plain = log(config_.training.mixed_precision, "");
  return plain.models.size() == 1 ? estimate::repeated_modules(plain.models[0]) : "";
}

EstimateRow ProgramEstimates::of(const estimate::Setting& setting, const std::string& precision,
                                 bool checkpointing) {
  const std::string patterns = checkpointing ? pattern() : "";
  return {
      .setting = setting.name,
      .precision = precision,
      .checkpointing = patterns,
      .world_size = world_size_,
      .memory = estimate::estimate_memory(log(precision, patterns), apply(setting, config_.backend),
                                          world_size_, config_.communication)};
}

}  // namespace coupler::cli
