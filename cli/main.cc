// The coupler program: finds the command, runs it, and turns errors into messages and exit codes.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"

namespace coupler::cli {
namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
  std::string_view summary;  // "" for internal commands
  const char* help = "";
};

const Command kCommands[] = {
    {"launch", run_launch, "start a program as a group of processes that train together",
     kLaunchHelp},
    {"test", run_test, "test a configuration, from rendezvous to a short training run", kTestHelp},
    {"config", run_config, "create, check or explain the configuration", kConfigHelp},
    {"estimate", run_estimate, "estimate how much memory a program or model needs", kEstimateHelp},
    {"plugins", run_plugins, "list the backends and whether they can be used here", kPluginsHelp},
    {"check-plugin", run_check_plugin, "check that a backend conforms to the plugin interface",
     kCheckPluginHelp},
    {"new", run_new, "create the skeleton of a plugin or a program", kNewHelp},
    {"checkpoint", run_checkpoint, "list, show, verify or convert checkpoints", kCheckpointHelp},
    {"merge-weights", run_merge_weights, "merge a checkpoint's weights for other programs",
     kMergeWeightsHelp},
    {"setup-torch", run_setup_torch, "install LibTorch if Coupler was installed without it",
     kSetupTorchHelp},
    {"report", run_report, "write an HTML report with plots of a run", kReportHelp},
    {"env", run_env, "print the environment for a bug report", kEnvHelp},
    {"doctor", run_doctor, "find what is missing or slow on this machine and how to fix it",
     kDoctorHelp},
    {"bench", run_bench, "measure latency and bandwidth of collective operations", kBenchHelp},
    {"rank-shim", run_rank_shim, ""},
    {"completion", run_completion, "print a shell completion script or write man pages",
     kCompletionHelp},
    {"complete", run_complete, ""},
};

}  // namespace

std::vector<CommandHelp> command_helps() {
  std::vector<CommandHelp> helps;
  for (const Command& command : kCommands) {
    if (!command.summary.empty()) helps.push_back({command.name, command.summary, command.help});
  }
  helps.push_back({"config keys", "print every configuration key", kConfigKeysHelp});
  helps.push_back(
      {"config recommend", "print the fastest configuration that fits in memory", kRecommendHelp});
  return helps;
}

std::string main_help() {
  std::string text =
      "usage: coupler COMMAND [ARGUMENT]...\n\n"
      "One LibTorch training loop, any backend, chosen in a TOML file.\n\ncommands:\n";
  for (const Command& command : kCommands) {
    if (!command.summary.empty())
      text += fmt::format("  {:<15}{}\n", command.name, command.summary);
  }
  return text + R"help(
options:
  --version      print the version
  -h, --help     print this help; `coupler COMMAND --help` explains a command

Exit codes: 0 success; 2 usage or configuration error; 3 unusable backend; 4 lost peer or
expired deadline; otherwise the program's own, or 128 + its signal.

  coupler launch -n 2 ./train
)help";
}

namespace {

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> known = {"--help", "--version"};
  for (const Command& command : kCommands) {
    if (!command.summary.empty()) known.emplace_back(command.name);
  }
  const std::string nearest = nearest_name(name, known);
  const std::string question = nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
  throw Error(ErrorCode::kUsage, fmt::format("unknown command '{}'{}", name, question),
              {.subject = name, .hint = "'coupler --help' lists the commands"});
}

int run_command(const std::string& name, std::vector<char*> arguments) {
  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    const auto count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    return command.run(count, arguments.data());
  }
  fail_unknown(name);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(main_help().c_str(), stderr);
    return 2;
  }
  const std::string name = argv[1];
  if (name == "--version") return run_version(argc - 1, argv + 1);
  if (name == "help" && argc == 3) {
    static char ask[] = "--help";
    return run_command(argv[2], {argv[2], ask});
  }
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(main_help().c_str(), stdout);
    return 0;
  }
  return run_command(name, {argv + 1, argv + argc});
}

// A full disk or a closed pipe at standard output is an error, too.
int flush_output(int code) {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed || code != 0) return code;
  report_error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  return 1;
}

}  // namespace
}  // namespace coupler::cli

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  // Some supervisors start us with SIGCHLD ignored, which would hide the exit codes of ranks.
  std::signal(SIGCHLD, SIG_DFL);
  try {
    return coupler::cli::flush_output(coupler::cli::run(argc, argv));
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
