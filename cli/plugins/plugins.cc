// coupler plugins: lists the backends, and whether each can be used here.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/plugins/plugin_table.h"
#include "cli/plugins/support.h"
#include "cli/plugins/support_matrix.h"
#include "cli/text/command_line.h"
#include "cli/text/json_text.h"
#include "plugin/plugin.h"

namespace coupler::cli {

const char kPluginsHelp[] =
    R"help(usage: coupler plugins [--matrix] [--json] [--config FILE] [-o KEY=VALUE]...

Lists the backends and whether each can be used here. The search order is: the folders of
backend.plugin_path, those of COUPLER_PLUGIN_PATH, ../lib/coupler relative to this program, the
system's folder, and the built-in backend 'single' for one process.

  --matrix        query each backend, with a communicator of one rank, for the operations, types and
                  reductions it supports; "all" means those in the column "reductions", and "moved"
                  types cannot be reduced; a wrapper answers for the base that its options name or
                  "auto" picks; "?" means that the query failed for the reason printed below
  --json          print a JSON array of objects instead of tables
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one configuration key, e.g. -o backend.plugin_path=/opt/plugins

  coupler plugins --matrix -o backend.fsdp.base=mpi
)help";

int run_plugins(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--json", "--matrix"});
  if (line.has("--help")) {
    std::fputs(kPluginsHelp, stdout);
    return 0;
  }
  const Config config = load_config(line.config);
  std::string text;
  if (line.has("--matrix")) {
    const std::vector<Support> supports = ask_for_support(config.backend);
    text = line.has("--json") ? json_text(matrix_json(supports)) : matrix_text(supports);
  } else {
    const std::vector<PluginReport> reports = list_plugins(config.backend);
    text = line.has("--json") ? json_text(plugins_json(reports)) : plugin_table(reports);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace coupler::cli
