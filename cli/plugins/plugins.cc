// coupler plugins: which backends are there, and can they be used here?
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

Lists the backends that are found, in the order of the search, and whether each can be used here:
the folders of backend.plugin_path, those of COUPLER_PLUGIN_PATH, ../lib/coupler beside this
program, the system's folder, and the built-in backend 'single' for one process.

  --matrix        ask each backend, by a communicator of one rank, which operations, types and
                  reductions it has: "all" are those of the column "reductions", "moved" types are
                  not reduced; a wrapper answers for the base that its options name, or that "auto"
                  picks; "?" could not be asked, and the reason is below
  --json          print a JSON array of objects instead of tables
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key, e.g. -o backend.plugin_path=/opt/plugins

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
