#include "cli/launch/rank_environment.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/process.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_exit.h"
#include "cli/machine/cpu_binding.h"

namespace coupler::cli {
namespace {

int terminal_columns() {
  winsize size{};
  if (::isatty(2) == 0 || ::ioctl(2, TIOCGWINSZ, &size) != 0) {
    return 0;
  }
  return size.ws_col > 0 ? size.ws_col : 80;
}

// With --bind core the physical cores of the smallest share, else an equal share of logical cores.
int cores_per_rank(const LaunchPlan& plan) {
  const auto usable = static_cast<int>(usable_cpus().size());
  if (plan.bind != Bind::kCore) {
    return std::max(1, usable / plan.per_machine());
  }
  int cores = 0;
  int last = -1;
  for (const Cpu& cpu : read_topology(usable_cpus())) {
    cores += cpu.core != last ? 1 : 0;
    last = cpu.core;
  }
  return std::max(1, cores / plan.per_machine());
}

}  // namespace

Variables common_variables(const LaunchPlan& plan) {
  Variables variables;
  if (!plan.config.file.empty()) {
    // Absolute, as a rank may change its working directory before it reads it.
    variables["COUPLER_CONFIG_FILE"] = std::filesystem::absolute(plan.config.file).string();
  }
  if (!plan.overrides.empty()) {
    variables["COUPLER_OVERRIDES"] = joined_overrides(plan.overrides);
  }
  if (plan.config.launch.threads_per_process > 0) {
    variables["OMP_NUM_THREADS"] = std::to_string(plan.config.launch.threads_per_process);
  }
  if (!plan.visible_devices.empty()) {
    variables["CUDA_VISIBLE_DEVICES"] = plan.visible_devices;
  }
  if (plan.max_restarts > 0) {
    variables["COUPLER_RESTART_COUNT"] = std::to_string(plan.restart);
  }
  if (const int columns = terminal_columns(); columns > 0) {
    variables["COUPLER_TERMINAL"] = std::to_string(columns);
  }
  return variables;
}

Variables local_variables(const LaunchPlan& plan) {
  Variables variables = common_variables(plan);
  if (variables.count("OMP_NUM_THREADS") == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables["OMP_NUM_THREADS"] = std::to_string(cores_per_rank(plan));
  }
  return variables;
}

Variables rank_variables(const LaunchPlan& plan, int local_rank, const std::string& job_file) {
  Variables variables = local_variables(plan);
  const std::string prefix = plan.machines == 1 ? "COUPLER_" : "";
  variables[prefix + "RANK"] = std::to_string(plan.first_rank() + local_rank);
  variables[prefix + "WORLD_SIZE"] = std::to_string(plan.processes);
  variables[prefix + "LOCAL_RANK"] = std::to_string(local_rank);
  variables[prefix + "LOCAL_WORLD_SIZE"] = std::to_string(plan.per_machine());
  if (plan.machines > 1) {
    variables["MASTER_ADDR"] = plan.main_address;
    variables["MASTER_PORT"] = std::to_string(plan.main_port);
  } else if (!job_file.empty()) {
    variables["COUPLER_JOB_FILE"] = job_file;
  }
  return variables;
}

std::string joined_overrides(const std::vector<std::string>& ours) {
  std::string text = environment_value("COUPLER_OVERRIDES");
  for (const auto& override_text : ours) {
    text += (text.empty() ? "" : "\n") + override_text;
  }
  return text;
}

std::vector<std::string> environment_with(const Variables& added, bool owns_ranks) {
  Variables variables = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  // Variables of an outer launch do not describe our ranks.
  std::vector<const char*> foreign = {
      "COUPLER_RANK",     "COUPLER_WORLD_SIZE", "COUPLER_LOCAL_RANK", "COUPLER_LOCAL_WORLD_SIZE",
      "COUPLER_JOB_FILE", "COUPLER_TERMINAL",   kShimLibraryPath,     "COUPLER_RESTART_COUNT",
      kShimStore};
  if (owns_ranks) {
    foreign.insert(foreign.end(), {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  }
  for (const char* name : foreign) {
    if (added.count(name) == 0) {
      variables.erase(name);
    }
  }
  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    result.push_back(fmt::format("{}={}", name, value));
  }
  return result;
}

std::vector<std::vector<int>> rank_cpus(const LaunchPlan& plan) {
  if (plan.bind == Bind::kNone) {
    return std::vector<std::vector<int>>(static_cast<size_t>(plan.per_machine()));
  }
  return bind_ranks(plan.bind, read_topology(usable_cpus()), plan.per_machine());
}

}  // namespace coupler::cli
