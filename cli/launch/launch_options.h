// LaunchOptions: the command line of `coupler launch` as written, before any configuration is read.
// Plain data. Every option is in one of four tables: our own (launch_options.cc), and those of
// other launchers: accelerate launch (accelerate_options.cc), torchrun (torchrun_options.cc) and
// deepspeed (deepspeed_options.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/host_choice.h"
#include "cli/machine/cpu_binding.h"
#include "cli/text/command.h"
#include "config/config.h"

namespace coupler::cli {

struct AccelerateWord;  // cli/import/accelerate_words.h

enum class Via { kLocal, kMpirun, kSlurm, kTorchrun, kKubernetes };

// What Accelerate's options say about the backend; backend_overrides() turns it into keys.
struct BackendFlags {
  bool cpu = false, multi_gpu = false, use_fsdp = false, use_deepspeed = false;
};

// What a plan (launch_plan.h) takes over as it was written.
struct LaunchSettings {
  Via via = Via::kLocal;
  std::string log_dir;   // "": none; absolute in a plan
  std::string outcome;   // path of the file for the job's outcome; "": none; absolute in a plan
  int max_restarts = 0;  // of a job that failed
  std::string visible_devices;      // CUDA_VISIBLE_DEVICES of the ranks; "": as it is
  std::string image, name;          // for a manifest
  std::string manifest = "jobset";  // or "pytorchjob"
  bool prefix = false;              // "[rank 0] " before every line of output
  bool print = false;               // print the script instead of running it
  bool print_env = false, dry_run = false;
  std::vector<std::string> remarks;  // about options without effect
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
  HostChoice hosts;  // which machines of the hostfile
  BackendFlags backend;
  // Those of Accelerate's options that stand for keys, in the order of the table; apply_settings()
  // combines them.
  struct Setting {
    const AccelerateWord* word = nullptr;
    std::string value, as_written;
  };
  std::vector<Setting> settings;
  // What Accelerate's options for the sizes of ParallelismConfig ask for.
  int64_t ranks_of_sizes = 0;        // 0: nothing
  std::string sizes;                 // these options, as they were written
  config::ConfigRequest request;     // --config, -o, and the keys that other options stand for
  std::vector<std::string> program;  // and its arguments

  // What set an option of ours ("-n") or a key, for messages about contradictions.
  struct Setter {
    std::string name;   // of the option, as it was written: "--nproc_per_node"
    std::string value;  // what it sets
    std::string text;   // "--nproc_per_node 2"
  };
  std::map<std::string, Setter, std::less<>> setters;              // the last ones
  std::map<std::string, std::vector<Setter>, std::less<>> others;  // of other names, that agree
  std::string needs_log_dir;                                       // "--tee 3", if it was given
};

// One option and what it does. as_written: its name, for messages. Throws Error(kUsage).
struct LaunchOption {
  Option option;
  std::function<void(LaunchOptions& options, const std::string& value,
                     const std::string& as_written)>
      apply;
};
const std::vector<LaunchOption>& own_launch_options();
const std::vector<LaunchOption>& torchrun_options();
const std::vector<LaunchOption>& deepspeed_options();
const std::vector<LaunchOption>& accelerate_options();
std::vector<Option> launch_options();  // all

LaunchOptions read_launch_options(const Arguments& arguments);

Command launch_command();  // in launch.cc

// Call after reading the configuration: the overrides that --cpu, --use-fsdp and the like stand
// for. Throws Error(kUsage) if they contradict the configuration or each other.
std::vector<std::string> backend_overrides(const BackendFlags& words, const config::Config& config);

// Turns options.settings into overrides and remarks. config: the configuration without them. Throws
// Error(kUsage) if one is refused, or contradicts another.
void apply_settings(LaunchOptions& options, const config::Config& config);

inline constexpr int kMaxProcesses = 4096;  // that one launcher starts

// Call with the final configuration. Throws Error(kUsage) if an option set a key that the
// configuration does not read, such as --zero_stage without --use_deepspeed.
void check_keys_are_read(const LaunchOptions& options, const config::Config& config);

// The option as it was written, with its value ("--nproc_per_node 2"), that set this one of ours.
std::string as_written(const LaunchOptions& options, const std::string& ours);

// For the tables.

// Applies options of `coupler launch`, such as "--via mpirun", for an option of another launcher.
// {} stands for the value.
void apply_words(LaunchOptions& options, std::string_view words, const std::string& value,
                 const std::string& as_written);
// Throws Error(kUsage) naming both options if another one has set `what` (an option of ours, or a
// key) to something else. Of one option that is repeated, the last counts.
void note_setter(LaunchOptions& options, const std::string& what,
                 const LaunchOptions::Setter& setter);

[[noreturn]] void fail_usage(const std::string& message, const std::string& subject,
                             const std::string& hint = "");
int parse_number(const std::string& text, int least, int most, const std::string& word,
                 const std::string& meaning);
// Fails because the option, with its value, is refused.
[[noreturn]] void refuse_option(const std::string& as_written, const std::string& value,
                                const std::string& why, const std::string& hint = "omit it");
// key="text", escaped for TOML.
std::string text_override(const std::string& key, const std::string& text);

}  // namespace coupler::cli
