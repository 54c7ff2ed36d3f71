#include "cli/estimate/estimate_program.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/text.h"
#include "cli/launch/rank_environment.h"
#include "cli/process/capture_output.h"
#include "cli/process/child_process.h"
#include "config/config.h"
#include "estimate/step_log.h"
#include "groups/mesh.h"

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
                                     const std::vector<std::string>& more, int stage, int log) {
  std::vector<std::string> overrides = config.overrides;
  overrides.insert(overrides.end(), more.begin(), more.end());
  Variables added = {{"COUPLER_OVERRIDES", joined_overrides(overrides)},
                     {"COUPLER_ESTIMATE", fmt::format("/dev/fd/{}", log)},
                     {"COUPLER_ESTIMATE_STAGE", fmt::to_string(stage)}};
  if (config.file) {
    added["COUPLER_CONFIG_FILE"] = std::filesystem::absolute(*config.file).string();
  }
  return environment_with(added);
}

// Runs the program as one process and returns what it left: the text of a log, and its output.
// config: the file and overrides of the command line; more: overrides that follow them. stage: of a
// pipeline, that the process stands for.
struct Finished {
  std::string log, output;
  int status = 0;
};
Finished run_dry(const std::vector<std::string>& program, const config::ConfigRequest& config,
                 const std::vector<std::string>& more, int stage) {
  const UniqueFd log = memory_file("coupler-estimate"), output = memory_file("coupler-output");
  ChildCommand command;
  command.path = find_program(program.at(0));
  command.arguments = program;
  command.environment = environment(config, more, stage, log.get());
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
  return {read_whole(log), read_whole(output), status};
}

[[noreturn]] void throw_no_log(const std::string& program, int status, int stage) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const bool made_no_step = code == 0;
  throw Error(
      made_no_step ? ErrorCode::kUsage : ErrorCode::kUnsupported,
      made_no_step ? fmt::format("'{}' ended without a dry run of two optimizer steps", program)
                   : fmt::format("'{}' ended with code {} in its dry run{}", program, code,
                                 stage > 0 ? fmt::format(" as stage {}", stage) : ""),
      {.subject = program,
       .hint = made_no_step
                   ? "it must prepare its model and optimizer with coupler::Accelerator and "
                     "take two steps; give it more steps or samples"
                   : "see its output above; tensors have no values in a dry run"});
}

// The message of the error that ended a program, without its prefix; its last line if there is
// none.
std::string error_in(const std::string& output) {
  constexpr std::string_view kPrefix = "error: ";
  std::string last;
  for (const std::string& line : split(output, '\n')) {
    if (line.empty()) continue;
    last = line;
    if (const size_t at = line.find(kPrefix); at != std::string::npos)
      return without_hint(line.substr(at + kPrefix.size()));
  }
  return last.empty() ? "it prints nothing" : last;
}

// What a dry run's process is told of a mesh. Which ranks get other samples does not matter to it.
std::vector<std::string> mesh_overrides(const Mesh& mesh) {
  return {fmt::format("parallel.tensor={}", mesh.size("tensor")),
          fmt::format("parallel.context={}", mesh.size("context")),
          fmt::format("parallel.expert={}", mesh.size("expert")),
          "parallel.data=rest",
          "parallel.shard=1",
          fmt::format("parallel.pipeline={}", mesh.size("pipeline"))};
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

EstimateRequest read_estimate_request(const Arguments& arguments) {
  EstimateRequest request{.config = arguments.config, .program = arguments.program};
  request.disk = arguments.value("--disk", "/scratch");
  if (arguments.has("--world")) {
    const std::string text = arguments.value("--world");
    request.world_size = to_number<int64_t>(text).value_or(0);
    if (request.world_size < 1 || request.world_size > 65536)
      arguments.refuse(
          fmt::format("--world is '{}' but must be a whole number from 1 to 65536", text),
          "--world", "give the number of processes of the job");
  }
  if (arguments.has("--limit")) request.limit = arguments.byte_size("--limit");
  return request;
}

ProgramEstimates::ProgramEstimates(const EstimateRequest& request, const config::Config& config)
    : request_(request),
      config_(config),
      world_size_(
          static_cast<int>(request.world_size > 0 ? request.world_size : config.launch.processes)) {
  groups::mesh_of(config, world_size_, 0);
}

const ProgramEstimates::DryRun& ProgramEstimates::run(const std::string& precision,
                                                      const std::string& pattern, const Mesh* mesh,
                                                      int stage) {
  std::vector<std::string> overrides = {
      fmt::format("training.mixed_precision={}", precision),
      fmt::format("memory.activation_checkpointing={}", pattern.empty() ? "[]" : pattern),
      fmt::format("launch.processes={}", world_size_)};
  if (mesh != nullptr) {
    for (std::string& override : mesh_overrides(*mesh)) overrides.push_back(std::move(override));
  }
  const auto known = runs_.find({stage, overrides});
  if (known != runs_.end()) return known->second;
  Finished finished = run_dry(request_.program, request_.config, overrides, stage);
  DryRun made{.output = std::move(finished.output), .status = finished.status};
  if (!finished.log.empty()) made.log = estimate::read_step_log(finished.log);
  return runs_.emplace(std::pair(stage, std::move(overrides)), std::move(made)).first->second;
}

// If the program fails, its output goes to standard error.
const estimate::StepLog& ProgramEstimates::log(const std::string& precision,
                                               const std::string& pattern, const Mesh* mesh,
                                               int stage) {
  const DryRun& made = run(precision, pattern, mesh, stage);
  if (made.log) return *made.log;
  std::fwrite(made.output.data(), 1, made.output.size(), stderr);
  throw_no_log(request_.program[0], made.status, stage);
}

std::string ProgramEstimates::refusal(const std::string& precision, const Mesh& mesh) {
  for (int stage = 0, stages = 1; stage < stages; ++stage) {
    const DryRun& made = run(precision, "", &mesh, stage);
    if (!made.log) return error_in(made.output);
    stages = std::max(stages, made.log->pipeline.stages);
  }
  return "";
}

bool ProgramEstimates::makes_pipeline(const std::string& precision, const Mesh* mesh) {
  return log(precision, "", mesh).pipeline.stages > 0;
}

EstimateRow ProgramEstimates::row(const std::string& setting, const config::BackendConfig& backend,
                                  const config::MemoryConfig& memory, const std::string& precision,
                                  const std::string& pattern, const Mesh* mesh) {
  const estimate::StepLog& first = log(precision, pattern, mesh);
  const Mesh seen = mesh != nullptr ? *mesh : Mesh(first.mesh, 0);
  EstimateRow result{.setting = setting,
                     .precision = precision,
                     .checkpointing = pattern,
                     .world_size = world_size_,
                     .mesh = seen};
  const auto estimate_of = [&](const estimate::StepLog& made) {
    return estimate::estimate_memory(made, backend, estimate::sharing_ranks(seen),
                                     config_.communication, memory);
  };
  take_estimate(first, estimate_of(first), result);
  for (int stage = 1; stage < first.pipeline.stages; ++stage) {
    const estimate::StepLog& made = log(precision, pattern, mesh, stage);
    take_estimate(made, estimate_of(made), result);
  }
  return result;
}

EstimateRow ProgramEstimates::configured() {
  return row(setting_name(config_.backend), config_.backend, config_.memory,
             config_.training.mixed_precision, joined(config_.memory.activation_checkpointing),
             nullptr);
}

std::string ProgramEstimates::pattern(const Mesh* mesh) {
  if (!config_.memory.activation_checkpointing.empty()) {
    return joined(config_.memory.activation_checkpointing);
  }
  const estimate::StepLog& plain = log(config_.training.mixed_precision, "", mesh);
  // The balance loss of mixtures needs what checkpointing drops.
  const bool is_known = plain.models.size() == 1 && plain.experts == 0;
  std::string found = is_known ? estimate::repeated_modules(plain.models[0]) : "";
  // A stage of a pipeline has only some of the modules.
  for (int stage = 1; is_known && found.empty() && stage < plain.pipeline.stages; ++stage) {
    const auto& models = log(config_.training.mixed_precision, "", mesh, stage).models;
    found = estimate::repeated_modules(models.at(0));
  }
  return found;
}

uint64_t ProgramEstimates::experts() const {
  const auto made = std::find_if(runs_.begin(), runs_.end(),
                                 [](const auto& run) { return run.second.log.has_value(); });
  return made == runs_.end() ? 0 : made->second.log->experts;
}

EstimateRow ProgramEstimates::of(const estimate::Setting& setting, const std::string& precision,
                                 bool checkpointing, const Mesh* mesh) {
  return row(setting.name, apply(setting, config_.backend), {}, precision,
             checkpointing ? pattern(mesh) : "", mesh);
}

}  // namespace coupler::cli
