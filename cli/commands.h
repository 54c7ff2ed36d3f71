// The commands of the coupler program: one function each, called by main() with the command's name
// as argv[0] and a null argv[argc]. Each returns the exit code. If a command throws coupler::Error,
// main() prints it as "coupler: error: …" and exits with its exit_code(). Single-threaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

int run_launch(int argc, char** argv);
int run_rank_shim(int argc, char** argv);
int run_config(int argc, char** argv);
int run_plugins(int argc, char** argv);
int run_check_plugin(int argc, char** argv);
int run_new(int argc, char** argv);
int run_setup_torch(int argc, char** argv);
int run_report(int argc, char** argv);
int run_env(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_version(int argc, char** argv);  // --version
int run_checkpoint(int argc, char** argv);
int run_merge_weights(int argc, char** argv);
int run_estimate(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_test(int argc, char** argv);
int run_completion(int argc, char** argv);
int run_complete(int argc, char** argv);

// What `coupler COMMAND --help` prints, in the layout that text/help_text.h describes.
extern const char kLaunchHelp[], kConfigHelp[], kConfigKeysHelp[], kRecommendHelp[], kPluginsHelp[],
    kCheckPluginHelp[], kNewHelp[], kSetupTorchHelp[], kReportHelp[], kEnvHelp[], kDoctorHelp[],
    kCheckpointHelp[], kMergeWeightsHelp[], kEstimateHelp[], kBenchHelp[], kTestHelp[],
    kCompletionHelp[];

struct CommandHelp {
  std::string_view name;  // "launch"; "config recommend" for a subcommand with its own help
  std::string_view summary;
  std::string_view text;
};
std::vector<CommandHelp> command_helps();
std::string main_help();  // coupler's own

}  // namespace coupler::cli
