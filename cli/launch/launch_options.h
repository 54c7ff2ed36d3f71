// LaunchOptions: the command line of `coupler launch` as it was written, before any configuration
// is read. Plain data. Every word is in one of two tables: our own (launch_words.cc) and those of
// Accelerate (accelerate_words.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/machine/cpu_binding.h"
#include "config/config.h"

namespace coupler::cli {

enum class Via { kLocal, kMpirun, kSlurm, kTorchrun, kKubernetes };

// What Accelerate's words say about the backend; apply_backend_words() turns it into keys.
struct BackendWords {
  bool cpu = false, multi_gpu = false, use_fsdp = false, use_deepspeed = false;
};

struct LaunchOptions {
  Via via = Via::kLocal;
  std::optional<int> processes;     // of all machines
  std::optional<int> per_machine;   // of each
  std::optional<int> machines;      // how many
  std::optional<int> machine_rank;  // which of them this is
  std::string main_address;
  std::optional<int> main_port;  // 0: any free one
  std::string hostfile;
  std::string log_dir;
  std::string outcome;  // a file
  std::optional<Bind> bind;
  int max_restarts = 0;
  std::string image, name;          // of a manifest
  std::string manifest = "jobset";  // or pytorchjob
  bool prefix = false;
  bool print = false, print_env = false, dry_run = false;
  bool help = false;
  BackendWords backend;
  ConfigRequest request;  // --config, and -o with what other words mean in keys
  int program = 0;        // its index in argv
};

// One word. Names are written with "-"; "_" is taken for it.
struct LaunchWord {
  const char* name;  // "--num-processes"
  bool takes_value;
  // value: "" without one; as_written: for messages. Throws Error(kUsage).
  void (*apply)(LaunchOptions& options, const std::string& value, const std::string& as_written);
};
const std::vector<LaunchWord>& launch_words();
const std::vector<LaunchWord>& accelerate_words();

// Reads what stands before the program. Throws Error(kUsage) naming the word, the nearest known one
// where it is unknown, and the fix.
LaunchOptions parse_launch_options(int argc, char** argv);

// After the configuration was read: the overrides that --cpu, --use-fsdp and kin stand for, where
// the configuration leaves it open. Throws Error(kUsage) where they contradict it or each other.
std::vector<std::string> backend_overrides(const BackendWords& words, const Config& config);

inline constexpr int kMostProcesses = 4096;  // that one launcher starts

// For the tables.
[[noreturn]] void fail_usage(const std::string& message, const std::string& subject,
                             const std::string& hint = "");
int parse_number(const std::string& text, int least, int most, const std::string& word,
                 const std::string& meaning);
// key="text", with what TOML wants escaped.
std::string text_override(const std::string& key, const std::string& text);

}  // namespace coupler::cli
