// coupler env: everything a bug report needs, and nothing secret.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "plugin/plugin.h"
#include "plugin_table.h"
#include "secrets.h"
#include "system_info.h"
#include "table.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coupler::cli {

const char kEnvHelp[] = R"help(usage: coupler env [--config FILE] [-o KEY=VALUE]...

Prints what a bug report needs: versions, machine, LibTorch, Open MPI, backends, the variables that
matter and the configuration. Variables and options whose names suggest a secret show "(hidden)".

  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key

  coupler env
)help";

namespace {

constexpr const char* kHidden = "(hidden)";

std::string facts() {
  return format_table({{"Coupler", COUPLER_VERSION},
                       {"Plugin ABI", fmt::format("{}.{}", DB_ABI_MAJOR, DB_ABI_MINOR)},
                       {"System", operating_system()},
                       {"Processor", processor()},
                       {"Memory", memory()},
                       {"NVIDIA driver", gpu_driver()},
                       {"Compiler", compiler()},
                       {"LibTorch", libtorch()},
                       {"MPI", open_mpi()}});
}

std::string variables() {
  std::vector<std::string> lines;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!is_reported_variable(name) || name.size() == text.size()) continue;
    const std::string value =
        may_be_secret(name) ? kHidden : printable(text.substr(name.size() + 1));
    lines.push_back(fmt::format("{}={}\n", printable(name), value));
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return all.empty() ? "none\n" : all;
}

void hide_secrets(Config& config) {
  for (auto& [plugin, options] : config.backend.options) {
    for (PluginOption& option : options) {
      if (may_be_secret(option.key)) option.value = std::string(kHidden);
    }
  }
}

}  // namespace

int run_env(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {});
  if (line.has("--help")) {
    std::fputs(kEnvHelp, stdout);
    return 0;
  }
  // A configuration that is wrong belongs into the report; it does not prevent one.
  Config config;
  std::string configuration;
  try {
    config = load_config(line.config);
    hide_secrets(config);
    configuration = explain_config(config);
  } catch (const Error& error) {
    configuration = fmt::format("{}\n(the rest of this report uses the defaults)\n", error.what());
  }
  const std::string report =
      fmt::format("{}\nBackends\n{}\nVariables\n{}\nConfiguration\n{}", facts(),
                  plugin_table(list_plugins(config.backend)), variables(), configuration);
  std::fputs(report.c_str(), stdout);
  return 0;
}

}  // namespace coupler::cli
