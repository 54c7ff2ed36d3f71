// coupler --version: the versions of the program, LibTorch and the backends found.
#include <coupler/distributed_backend.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/machine/torch_info.h"
#include "cli/plugins/plugins.h"
#include "cli/text/command_line.h"
#include "cli/text/json_text.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

std::string version_text(const TorchInfo& torch, const std::vector<PluginReport>& plugins) {
  std::string text = fmt::format("coupler {} (plugin ABI {}.{})\nLibTorch {}\n", COUPLER_VERSION,
                                 DB_ABI_MAJOR, DB_ABI_MINOR, describe(torch));
  for (const PluginReport& plugin : plugins) {
    // One without a version could not be loaded; `coupler plugins` reports why.
    text += plugin.version.empty()
                ? fmt::format("plugin {} cannot be loaded, {}\n", plugin.name, plugin.path)
                : fmt::format("plugin {} {} (ABI {}), {}\n", plugin.name, plugin.version,
                              plugin.abi, plugin.path.empty() ? "built in" : plugin.path);
  }
  return text;
}

std::string version_json(const TorchInfo& torch, const std::vector<PluginReport>& plugins) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PluginReport& plugin : plugins) {
    rows.push_back({{"name", plugin.name},
                    {"version", plugin.version},
                    {"abi", plugin.abi},
                    {"path", plugin.path}});
  }
  return json_text(
      {{"coupler", COUPLER_VERSION},
       {"abi", fmt::format("{}.{}", DB_ABI_MAJOR, DB_ABI_MINOR)},
       {"libtorch", {{"version", torch.version}, {"cuda", torch.cuda}, {"root", torch.root}}},
       {"plugins", rows}});
}

}  // namespace

int run_version(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--json"});
  const TorchInfo torch = torch_info();
  // Without the configuration: versions are printed even if it is wrong.
  const std::vector<PluginReport> plugins = list_plugins(BackendConfig());
  std::fputs(
      (line.has("--json") ? version_json(torch, plugins) : version_text(torch, plugins)).c_str(),
      stdout);
  return 0;
}

}  // namespace coupler::cli
