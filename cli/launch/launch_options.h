// LaunchOptions: the command line of `coupler launch` as written, before any configuration is read.
// Plain data. Every option is in one of two tables: our own (launch_options.cc) or Accelerate's
// (accelerate_options.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/machine/cpu_binding.h"
#include "cli/text/command.h"
#include "config/config.h"

namespace coupler::cli {

enum class Via { kLocal, kMpirun, kSlurm, kTorchrun, kKubernetes };

// What Accelerate's options say about the backend; backend_overrides() turns it into keys.
struct BackendFlags {
  bool cpu = false, multi_gpu = false, use_fsdp = false, use_deepspeed = false;
};

// What a plan (launch_plan.h) takes over as it was written.
struct LaunchSettings {
  Via via = Via::kLocal;
  std::string log_dir;      // "": none; absolute in a plan
  std::string outcome;      // path of the file for the job's outcome; "": none; absolute in a plan
  int max_restarts = 0;     // of a job that failed
  std::string image, name;  // for a manifest
  std::string manifest = "jobset";  // or "pytorchjob"
  bool prefix = false;              // "[rank 0] " before every line of output
  bool print = false;               // print the script instead of running it
  bool print_env = false, dry_run = false;
};

struct LaunchOptions : LaunchSettings {
  std::optional<int> processes;     // on all machines together
  std::optional<int> per_machine;   // on each machine
  std::optional<int> machines;      // number of machines
  std::optional<int> machine_rank;  // index of this machine
  std::string main_address;
  std::optional<int> main_port;  // 0: any free one
  std::string hostfile;
  std::optional<Bind> bind;
  BackendFlags backend;
  config::ConfigRequest request;     // --config, -o, and the keys that other options stand for
  std::vector<std::string> program;  // and its arguments
};

// One option and what it does. as_written: its name, for messages. Throws Error(kUsage).
struct LaunchOption {
  Option option;
  void (*apply)(LaunchOptions& options, const std::string& value, const std::string& as_written);
};
const std::vector<LaunchOption>& own_launch_options();
const std::vector<LaunchOption>& accelerate_options();
std::vector<Option> launch_options();  // both

LaunchOptions read_launch_options(const Arguments& arguments);

Command launch_command();  // in launch.cc

// Call after reading the configuration: the overrides that --cpu, --use-fsdp and the like stand
// for. Throws Error(kUsage) if they contradict the configuration or each other.
std::vector<std::string> backend_overrides(const BackendFlags& words, const config::Config& config);

inline constexpr int kMaxProcesses = 4096;  // that one launcher starts

// For the tables.
[[noreturn]] void fail_usage(const std::string& message, const std::string& subject,
                             const std::string& hint = "");
int parse_number(const std::string& text, int least, int most, const std::string& word,
                 const std::string& meaning);
// key="text", escaped for TOML.
std::string text_override(const std::string& key, const std::string& text);

}  // namespace coupler::cli
