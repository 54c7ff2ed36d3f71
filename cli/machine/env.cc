// coupler env: everything a bug report needs, and nothing secret.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/system_info.h"
#include "cli/machine/torch_info.h"
#include "cli/plugins/plugins.h"
#include "cli/process/capture_output.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "plugin/plugin.h"

namespace coupler::cli {

namespace {

constexpr const char* kHidden = "(hidden)";

// Whether a variable or option of that name may hold a password, a key or similar.
bool may_be_secret(std::string_view name) {
  // PRECONDITION_TRANSPORTS is the key by which Open MPI's ranks authenticate each other;
  // COUPLER_OVERRIDES holds whole -o arguments, including options of backends.
  constexpr std::array<std::string_view, 13> kWords = {"secret",
                                                       "token",
                                                       "pass",
                                                       "key",
                                                       "credential",
                                                       "auth",
                                                       "jwt",
                                                       "cookie",
                                                       "nonce",
                                                       "login",
                                                       "cert",
                                                       "overrides",
                                                       "precondition_transports"};
  const std::string low = lower(std::string(name));
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return low.find(word) != std::string::npos; });
}

// Whether the variable affects how ranks find each other or run.
bool is_reported_variable(std::string_view name) {
  constexpr std::array<std::string_view, 10> kPrefixes = {"COUPLER_",  "MASTER_", "OMPI_", "SLURM_",
                                                          "OMP_",      "NCCL_",   "GLOO_", "PMI_",
                                                          "MPI_LOCAL", "PET_"};
  constexpr std::array<std::string_view, 9> kNames = {
      "RANK",           "WORLD_SIZE",           "LOCAL_RANK", "LOCAL_WORLD_SIZE",
      "LOCAL_SIZE",     "JOB_COMPLETION_INDEX", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES",
      "LD_LIBRARY_PATH"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

using SystemInfo = std::vector<std::pair<const char*, std::string>>;

SystemInfo info() {
  const GpuInfo gpu = gpu_info();
  const TorchInfo torch = torch_info();
  return {{"Coupler", COUPLER_VERSION},
          {"Program", own_program()},
          {"Plugin ABI", fmt::format("{}.{}", DB_ABI_MAJOR, DB_ABI_MINOR)},
          {"System", operating_system()},
          {"Processor", processor()},
          {"NUMA", numa()},
          {"Memory", memory()},
          {"Shared memory", shared_memory()},
          {"Limits", process_limits()},
          {"Control group", describe(cgroup_limits())},
          {"NVIDIA driver", describe_driver(gpu)},
          {"GPUs", describe_gpus(gpu)},
          {"NCCL", nccl_version(torch)},
          {"Compiler", compiler()},
          {"LibTorch", describe(torch)},
          {"MPI", describe(mpi_info({"mpirun", "mpirun.openmpi"}))}};
}

// Name and value, sorted.
std::map<std::string, std::string> variables() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!is_reported_variable(name) || name.size() == text.size()) continue;
    found[printable(name)] =
        may_be_secret(name) ? kHidden : printable(text.substr(name.size() + 1));
  }
  return found;
}

void hide_secrets(config::Config& config) {
  for (auto& [plugin, options] : config.backend.options) {
    for (config::PluginOption& option : options) {
      if (may_be_secret(option.key)) option.value = std::string(kHidden);
    }
  }
}

struct Report {
  SystemInfo info;
  std::vector<plugin::PluginReport> plugins;
  std::map<std::string, std::string> variables;
  std::string file;           // of the configuration; "": none
  std::string configuration;  // as `coupler config --explain` prints it, or its error
  bool valid = true;
};

Report make_report(const config::ConfigRequest& request) {
  Report report;
  // A wrong configuration belongs in the report and does not prevent one.
  config::Config config;
  try {
    config = config::load_config(request);
    hide_secrets(config);
    report.configuration = config::explain_config(config);
  } catch (const Error& error) {
    report.valid = false;
    report.configuration =
        fmt::format("{}\n(the rest of this report uses the defaults)\n", error.what());
  }
  report.file = config.file;
  report.info = info();
  report.plugins = plugin::list_plugins(config.backend);
  report.variables = variables();
  return report;
}

std::string report_text(const Report& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : report.info) rows.push_back({name, value});
  std::string lines;
  for (const auto& [name, value] : report.variables) lines += fmt::format("{}={}\n", name, value);
  return fmt::format("{}\nBackends\n{}\nVariables\n{}\nConfiguration\n{}", format_table(rows),
                     plugin_table(report.plugins), lines.empty() ? "none\n" : lines,
                     report.configuration);
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json info = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.info) info[name] = value;
  return json_text(
      {{"facts", info},
       {"backends", plugins_json(report.plugins)},
       {"variables", report.variables},
       {"configuration",
        {{"file", report.file}, {"valid", report.valid}, {"text", report.configuration}}}});
}

int run_env(const Arguments& arguments) {
  const Report report = make_report(arguments.config);
  std::fputs((arguments.has("--json") ? report_json(report) : report_text(report)).c_str(), stdout);
  return 0;
}

}  // namespace

Command env_command() {
  return {.name = "env",
          .summary = "print the environment for a bug report",
          .options = {{"--json", "print a JSON object instead of tables"}},
          .config = true,
          .description = {"Prints what a bug report needs: versions, machine, limits, LibTorch, "
                          "GPUs, Open MPI, backends, the relevant environment variables and the "
                          "configuration. Variables and options whose names suggest a secret are "
                          "printed as \"(hidden)\"."},
          .examples = {"coupler env > report.txt"},
          .run = run_env};
}

}  // namespace coupler::cli
