// The commands of the coupler program: one function each, called by main() with argv[0] = the
// command's name and a null argv[argc]. The result is the exit code; a coupler::Error that leaves a
// command is printed by main() as "coupler: error: …" and becomes its exit_code(). Single-threaded.
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

// What `coupler COMMAND --help` prints; its layout is text/help_text.h's.
extern const char kLaunchHelp[], kConfigHelp[], kConfigKeysHelp[], kRecommendHelp[], kPluginsHelp[],
    kCheckPluginHelp[], kNewHelp[], kSetupTorchHelp[], kReportHelp[], kEnvHelp[], kDoctorHelp[],
    kCheckpointHelp[], kMergeWeightsHelp[], kEstimateHelp[], kBenchHelp[], kTestHelp[],
    kCompletionHelp[];

struct CommandHelp {
  std::string_view name;  // "config recommend", where that has a help of its own
  std::string_view summary;
  std::string_view text;
};
std::vector<CommandHelp> command_helps();
std::string main_help();  // coupler's own

}  // namespace coupler::cli
