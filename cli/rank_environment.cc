#include <fmt/format.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "launch_plan.h"
#include "rank_end.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coupler::cli {
namespace {

// The variables by name; those of an outer launch, which say nothing about our ranks, left out.
std::map<std::string, std::string> inherited() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  for (const char* name :
       {"COUPLER_RANK", "COUPLER_WORLD_SIZE", "COUPLER_LOCAL_RANK", "COUPLER_LOCAL_WORLD_SIZE",
        "COUPLER_JOB_FILE", "COUPLER_TERMINAL", kShimLibraryPath}) {
    variables.erase(name);
  }
  return variables;
}

// Cores this process may use, which taskset and containers limit.
int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

int terminal_columns() {
  winsize size{};
  if (::isatty(2) == 0 || ::ioctl(2, TIOCGWINSZ, &size) != 0) {
    return 0;
  }
  return size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::vector<std::string> rank_environment(const LaunchPlan& plan, std::optional<int> rank,
                                          const std::string& job_file) {
  auto variables = inherited();
  const auto world = std::to_string(plan.processes);
  if (rank) {
    variables["COUPLER_RANK"] = variables["COUPLER_LOCAL_RANK"] = std::to_string(*rank);
    variables["COUPLER_WORLD_SIZE"] = variables["COUPLER_LOCAL_WORLD_SIZE"] = world;
  }
  if (const auto path = variables.find("LD_LIBRARY_PATH"); !rank && path != variables.end()) {
    variables[kShimLibraryPath] = path->second;  // before mpirun adds to it
  }
  if (!job_file.empty()) {
    variables["COUPLER_JOB_FILE"] = job_file;
  }
  if (!plan.config.file.empty()) {
    // Absolute: a rank may change its folder before it reads it.
    variables["COUPLER_CONFIG_FILE"] = std::filesystem::absolute(plan.config.file).string();
  }
  if (!plan.overrides.empty()) {
    auto& text = variables["COUPLER_OVERRIDES"];  // an outer launcher's come first
    for (const auto& override_text : plan.overrides) {
      text += (text.empty() ? "" : "\n") + override_text;
    }
  }
  if (plan.config.launch.threads_per_process > 0) {
    variables["OMP_NUM_THREADS"] = std::to_string(plan.config.launch.threads_per_process);
  } else if (variables.find("OMP_NUM_THREADS") == variables.end()) {
    variables["OMP_NUM_THREADS"] = std::to_string(std::max(1, usable_cores() / plan.processes));
  }
  if (const int columns = terminal_columns(); columns > 0) {
    variables["COUPLER_TERMINAL"] = std::to_string(columns);
  }
  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    result.push_back(fmt::format("{}={}", name, value));
  }
  return result;
}

}  // namespace coupler::cli
