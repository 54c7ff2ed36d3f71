#include "cli/plugins/plugin_table.h"

#include <nlohmann/json.hpp>

#include "cli/text/table.h"

namespace coupler::cli {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string remarks(const PluginReport& report) {
  std::string text = report.reason;
  if (report.needs_mpi_launch) text += text.empty() ? "needs mpirun" : "; needs mpirun";
  if (report.needs_base) text += text.empty() ? "needs a base" : "; needs a base";
  return or_dash(one_line(text));
}

}  // namespace

std::string plugin_table(const std::vector<PluginReport>& reports) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "VERSION", "ABI", "USABLE", "SCORE", "PATH", "REASON"}};
  for (const PluginReport& report : reports) {
    const bool is_built_in = report.path.empty() && report.usable;
    rows.push_back({one_line(report.name), or_dash(one_line(report.version)), or_dash(report.abi),
                    report.usable ? "yes" : "no", std::to_string(report.score),
                    is_built_in ? "(built in)" : or_dash(one_line(report.path)), remarks(report)});
  }
  return format_table(rows);
}

nlohmann::ordered_json plugins_json(const std::vector<PluginReport>& reports) {
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
  return rows;
}

}  // namespace coupler::cli
