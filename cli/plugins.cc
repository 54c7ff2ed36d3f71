// coupler plugins: which backends are there, and can they be used here?
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "plugin/plugin.h"
#include "plugin_table.h"

namespace coupler::cli {

const char kPluginsHelp[] = R"help(usage: coupler plugins [--json] [--config FILE] [-o KEY=VALUE]...

Lists the backends that are found, in the order of the search, and whether each can be used here:
the folders of backend.plugin_path, those of COUPLER_PLUGIN_PATH, ../lib/coupler beside this
program, the system's folder, and the built-in backend 'single' for one process.

  --json          print a JSON array of objects instead of a table
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key, e.g. -o backend.plugin_path=/opt/plugins

  coupler plugins --json
)help";

namespace {

std::string to_json(const std::vector<PluginReport>& reports) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PluginReport& report : reports) {
    rows.push_back({{"name", report.name},
                    {"path", report.path},
                    {"version", report.version},
                    {"description", report.description},
                    {"abi", report.abi},
                    {"usable", report.usable},
                    {"score", report.score},
                    {"reason", report.reason},
                    {"needs_mpi_launch", report.needs_mpi_launch},
                    {"needs_base", report.needs_base}});
  }
  // Texts come from plugins: what is no UTF-8 must not end the listing.
  return rows.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int run_plugins(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--json"});
  if (line.has("--help")) {
    std::fputs(kPluginsHelp, stdout);
    return 0;
  }
  const Config config = load_config(line.config);
  const std::vector<PluginReport> reports = list_plugins(config.backend);
  const std::string text = line.has("--json") ? to_json(reports) : plugin_table(reports);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace coupler::cli
