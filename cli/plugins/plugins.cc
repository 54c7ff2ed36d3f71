// coupler plugins: lists the backends, and whether each can be used here.
#include "cli/plugins/plugins.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/plugins/support.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string remarks(const plugin::PluginReport& report) {
  std::string text = short_reason(report);
  if (report.can(DB_CAP_NEEDS_MPI_LAUNCH)) text += text.empty() ? "needs mpirun" : "; needs mpirun";
  if (report.can(DB_CAP_NEEDS_BASE)) text += text.empty() ? "needs a base" : "; needs a base";
  return or_dash(text);
}

}  // namespace

std::string short_reason(const plugin::PluginReport& report) {
  return one_line(report.usable ? report.reason.substr(0, report.reason.find('\n'))
                                : report.reason);
}

std::string plugin_table(const std::vector<plugin::PluginReport>& reports, bool details) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "VERSION", "ABI", "USABLE", "SCORE", "PATH", "REASON"}};
  for (const plugin::PluginReport& report : reports) {
    const bool is_built_in = report.path.empty() && report.usable;
    rows.push_back({one_line(report.name), or_dash(one_line(report.version)), or_dash(report.abi),
                    report.usable ? "yes" : "no", std::to_string(report.score),
                    is_built_in ? "(built in)" : or_dash(one_line(report.path)), remarks(report)});
  }
  std::string text = format_table(rows);
  for (const plugin::PluginReport& report : reports) {
    const size_t end = report.reason.find('\n');
    if (!details || !report.usable || end == std::string::npos) continue;
    text += "\n" + one_line(report.name) + ":\n";
    for (const std::string& line : split(report.reason.substr(end + 1), '\n'))
      text += "  " + one_line(line) + "\n";
  }
  return text;
}

nlohmann::ordered_json plugins_json(const std::vector<plugin::PluginReport>& reports) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const plugin::PluginReport& report : reports) {
    rows.push_back({{"name", report.name},
                    {"path", report.path},
                    {"version", report.version},
                    {"description", report.description},
                    {"abi", report.abi},
                    {"usable", report.usable},
                    {"score", report.score},
                    {"reason", report.reason},
                    {"needs_mpi_launch", report.can(DB_CAP_NEEDS_MPI_LAUNCH)},
                    {"needs_base", report.can(DB_CAP_NEEDS_BASE)}});
  }
  return rows;
}

namespace {

int run_plugins(const Arguments& arguments) {
  const config::Config config = config::load_config(arguments.config);
  const bool as_json = arguments.has("--json");
  std::string text;
  if (arguments.has("--matrix")) {
    const std::vector<Support> supports = ask_for_support(config.backend);
    text = as_json ? json_text(matrix_json(supports)) : matrix_text(supports);
  } else {
    const std::vector<plugin::PluginReport> reports = plugin::list_plugins(config.backend);
    text = as_json ? json_text(plugins_json(reports))
                   : plugin_table(reports, arguments.has("--verbose"));
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

Command plugins_command() {
  return {
      .name = "plugins",
      .summary = "list the backends and whether they can be used here",
      .options = {{"--matrix",
                   "query each backend, with a communicator of one rank, for the operations, types "
                   "and reductions it supports; \"all\" means those in the column \"reductions\", "
                   "and \"moved\" types cannot be reduced; a wrapper answers for the base that its "
                   "options name or \"auto\" picks; \"?\" means that the query failed for the "
                   "reason printed below"},
                  {"-v, --verbose",
                   "also print details of backends, such as tables of their algorithms"},
                  {"--json", "print a JSON array of objects instead of tables"}},
      .config = true,
      .description = {"Lists the backends and whether each can be used here. The search order is: "
                      "the folders of backend.plugin_path, those of COUPLER_PLUGIN_PATH, "
                      "../lib/coupler relative to this program, the system's folder, and the "
                      "built-in backend 'single' for one process."},
      .examples = {"coupler plugins --matrix --json"},
      .run = run_plugins};
}

}  // namespace coupler::cli
