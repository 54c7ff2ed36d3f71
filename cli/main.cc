// The coupler program: the table of its commands, and how errors become messages and exit codes.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/machine/torch_info.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "plugin/plugin.h"

namespace coupler::cli {

// One for each command, next to its code.
Command launch_command(), test_command(), config_command(), estimate_command(), plugins_command(),
    check_plugin_command(), new_command(), checkpoint_command(), merge_weights_command(),
    setup_torch_command(), report_command(), env_command(), doctor_command(), bench_command(),
    completion_command(), rank_shim_command(), complete_command();
const Command& program();

namespace {

// coupler --version: the versions of the program, LibTorch and the backends found.

std::string version_text(const TorchInfo& torch, const std::vector<plugin::PluginReport>& plugins) {
  std::string text = fmt::format("coupler {} (plugin ABI {}.{})\nLibTorch {}\n", COUPLER_VERSION,
                                 DB_ABI_MAJOR, DB_ABI_MINOR, describe(torch));
  for (const plugin::PluginReport& plugin : plugins) {
    // One without a version could not be loaded; `coupler plugins` reports why.
    text += plugin.version.empty()
                ? fmt::format("plugin {} cannot be loaded, {}\n", plugin.name, plugin.path)
                : fmt::format("plugin {} {} (ABI {}), {}\n", plugin.name, plugin.version,
                              plugin.abi, plugin.path.empty() ? "built in" : plugin.path);
  }
  return text;
}

std::string version_json(const TorchInfo& torch, const std::vector<plugin::PluginReport>& plugins) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const plugin::PluginReport& plugin : plugins) {
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

int print_version(const Arguments& arguments) {
  const TorchInfo torch = torch_info();
  // Without the configuration: versions are printed even if it is wrong.
  const std::vector<plugin::PluginReport> plugins = plugin::list_plugins(config::BackendConfig());
  std::fputs((arguments.has("--json") ? version_json(torch, plugins) : version_text(torch, plugins))
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace

const Command& program() {
  static const Command table = {
      .name = "coupler",
      .summary = "distributed training in C++ over any backend",
      .forms = {"COMMAND [ARGUMENT]..."},
      .subcommands = {launch_command(),
                      test_command(),
                      config_command(),
                      estimate_command(),
                      plugins_command(),
                      check_plugin_command(),
                      new_command(),
                      checkpoint_command(),
                      merge_weights_command(),
                      setup_torch_command(),
                      report_command(),
                      env_command(),
                      doctor_command(),
                      bench_command(),
                      completion_command(),
                      rank_shim_command(),
                      complete_command(),
                      {.name = "--version",
                       .summary = "print the version",
                       .options = {{"--json", "with --version: print JSON"}},
                       .run = print_version}},
      .description = {"One LibTorch training loop, any backend, chosen in a TOML file.",
                      "`coupler COMMAND --help` explains a command."},
      .notes = {"Exit codes: 0 success; 2 usage or configuration error; 3 unusable backend; 4 lost "
                "peer or expired deadline; otherwise the program's own, or 128 + its signal."},
      .examples = {"coupler launch -n 2 ./train"}};
  return table;
}

namespace {

int run(std::vector<std::string> words) {
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return run_command(program(), "", std::move(words));
}

// A full disk or a closed pipe at standard output is an error, too.
int flush_output(int code) {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed || code != 0) return code;
  report_error(fmt::format("cannot write to standard output: {}", errno_message()));
  return 1;
}

}  // namespace
}  // namespace coupler::cli

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  // Some supervisors start us with SIGCHLD ignored, which would hide the exit codes of ranks.
  std::signal(SIGCHLD, SIG_DFL);
  try {
    return coupler::cli::flush_output(coupler::cli::run({argv + 1, argv + argc}));
  } catch (const coupler::Error& error) {
    std::fflush(stdout);
    coupler::report_error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fflush(stdout);
    coupler::report_error(error.what());
    return 1;
  }
}
