// coupler env: everything a bug report needs, and nothing secret.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/machine/gpu_info.h"
#include "cli/machine/mpi_info.h"
#include "cli/machine/resource_limits.h"
#include "cli/machine/system_info.h"
#include "cli/machine/torch_info.h"
#include "cli/plugins/plugins.h"
#include "cli/text/command_line.h"
#include "cli/text/json_text.h"
#include "cli/text/secrets.h"
#include "cli/text/table.h"
#include "plugin/plugin.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): not declared by POSIX

namespace coupler::cli {

const char kEnvHelp[] = R"help(usage: coupler env [--json] [--config FILE] [-o KEY=VALUE]...

Prints what a bug report needs: versions, machine, limits, LibTorch, GPUs, Open MPI, backends, the
relevant environment variables and the configuration. Variables and options whose names suggest a
secret are printed as "(hidden)".

  --json          print a JSON object instead of tables
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one configuration key

  coupler env > report.txt
)help";

namespace {

constexpr const char* kHidden = "(hidden)";

using Facts = std::vector<std::pair<const char*, std::string>>;

Facts facts() {
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

void hide_secrets(Config& config) {
  for (auto& [plugin, options] : config.backend.options) {
    for (PluginOption& option : options) {
      if (may_be_secret(option.key)) option.value = std::string(kHidden);
    }
  }
}

struct Report {
  Facts facts;
  std::vector<PluginReport> plugins;
  std::map<std::string, std::string> variables;
  std::string file;           // of the configuration; "": none
  std::string configuration;  // as `coupler config --explain` prints it, or its error
  bool valid = true;
};

Report make_report(const ConfigRequest& request) {
  Report report;
  // A wrong configuration belongs in the report and does not prevent one.
  Config config;
  try {
    config = load_config(request);
    hide_secrets(config);
    report.configuration = explain_config(config);
  } catch (const Error& error) {
    report.valid = false;
    report.configuration =
        fmt::format("{}\n(the rest of this report uses the defaults)\n", error.what());
  }
  report.file = config.file;
  report.facts = facts();
  report.plugins = list_plugins(config.backend);
  report.variables = variables();
  return report;
}

std::string report_text(const Report& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : report.facts) rows.push_back({name, value});
  std::string lines;
  for (const auto& [name, value] : report.variables) lines += fmt::format("{}={}\n", name, value);
  return fmt::format("{}\nBackends\n{}\nVariables\n{}\nConfiguration\n{}", format_table(rows),
                     plugin_table(report.plugins), lines.empty() ? "none\n" : lines,
                     report.configuration);
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.facts) facts[name] = value;
  return json_text(
      {{"facts", facts},
       {"backends", plugins_json(report.plugins)},
       {"variables", report.variables},
       {"configuration",
        {{"file", report.file}, {"valid", report.valid}, {"text", report.configuration}}}});
}

}  // namespace

int run_env(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--json"});
  if (line.has("--help")) {
    std::fputs(kEnvHelp, stdout);
    return 0;
  }
  const Report report = make_report(line.config);
  std::fputs((line.has("--json") ? report_json(report) : report_text(report)).c_str(), stdout);
  return 0;
}

}  // namespace coupler::cli
