// Config: everything a user can set, typed, with the source of every value. Plain data; a loaded
// Config never changes, so any thread may read it. Only load_config() creates one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace coupler {

// One value of a [backend.NAME] table; the plugin defines what the key means.
using OptionValue = std::variant<std::string, int64_t, double, bool>;

// Where a value came from, for `coupler config --explain` and for messages about it.
struct ValueSource {
  enum class Kind { kDefault, kCode, kFile, kEnvironment, kCommandLine } kind = Kind::kDefault;
  std::string text;  // "train.toml:3:1", "COUPLER_BACKEND_USE", "-o backend.use"
};

struct PluginOption {
  std::string key;  // dotted below [backend.NAME]
  OptionValue value;
  ValueSource source;
};

struct BackendConfig {
  std::string use = "auto";
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds peer_timeout = std::chrono::milliseconds(800);  // 0: never
  std::string interface_name;                                              // empty: loopback
  std::string sha256;                                        // the plugin file's; empty: unchecked
  std::vector<std::string> plugin_path;                      // folders searched first
  std::map<std::string, std::vector<PluginOption>> options;  // by plugin name
};

struct TrainingConfig {
  std::string device = "auto";  // auto, or one of LibTorch's: cpu, cuda, cuda:1
  int64_t gradient_accumulation_steps = 1;
  bool sync_each_batch = false;  // reduce gradients in every batch of a window, not only the last
  bool sync_with_dataloader = true;  // a loader's last batch ends the window
  bool optimizer_in_backward = false;
  bool broadcast_buffers =
      true;                  // from rank 0, after every reduction (torch's DDP: before forward)
  double bucket_cap_mb = 0;  // 0: adapted to measurements
  int64_t seed = 0;          // of LibTorch's generator; left alone unless set
  std::string mixed_precision = "no";    // no, bf16, fp16, fp8
  double loss_scale_init_scale = 65536;  // fp16 loss scaling, also the next three
  double loss_scale_growth_factor = 2;
  double loss_scale_backoff_factor = 0.5;
  int64_t loss_scale_growth_interval = 2000;  // steps
  std::string fp8_format = "hybrid";          // hybrid (gradients in e5m2) or e4m3
  bool fp8_emulate = false;                   // on devices without fp8 matrix units, slow
  std::vector<std::string> log_with;          // trackers, by name
  std::string project_dir = ".";
  std::string logging_dir;  // empty: project_dir
};

// What ranks send to keep their models equal; docs/less-communication.md.
struct CommunicationConfig {
  std::string gradients = "none";      // none, bf16, fp16, int8, powersgd
  int64_t int8_block = 256;            // elements that share a scale
  int64_t powersgd_rank = 1;           // as in torch's powerSGD_hook, also the next two
  int64_t powersgd_start_step = 1000;  // earlier steps are not compressed
  bool powersgd_warm_start = true;     // a step starts from the previous factors
  int64_t local_sgd_steps = 0;         // between two parameter averages; 0: no LocalSGD
  double local_sgd_momentum = 0;       // slow momentum of the averages
};

struct MemoryConfig {
  std::vector<std::string> activation_checkpointing;  // modules, by name patterns
  bool offload_activations = false;  // keep checkpointed inputs in host memory until backward
  // For models that every rank holds whole; sharding plugins have their own options.
  std::string offload_optimizer_device = "none";                // none, cpu, nvme
  std::string offload_optimizer_nvme_path;                      // a folder on the disk
  int64_t offload_optimizer_buffer_count = 4;                   // pieces read ahead, and unwritten
  int64_t offload_optimizer_sub_group_size = int64_t{1} << 23;  // elements in a piece
  std::string limit;  // per process, e.g. "4GiB"; empty: none
};

struct LaunchConfig {
  int64_t processes = 1;
  int64_t threads_per_process = 0;  // OMP_NUM_THREADS; 0: cores / processes
  bool tls = false;                 // for the rendezvous store
  bool all_interfaces = false;      // the store may listen on every interface
  std::string secret_file;          // shared by the machines of a job without a common launcher
};

struct CheckpointConfig {
  std::string dir;              // empty: no automatic checkpoints
  int64_t every = 0;            // optimizer steps; 0: no automatic checkpoints
  std::string resume = "auto";  // auto, no, or a path
  int64_t total_limit = 0;      // how many are kept; 0: all
  bool async = false;           // written while training continues
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);  // for the slowest rank to write
  std::chrono::nanoseconds grace = std::chrono::seconds(30);    // after SIGTERM, to save
};

struct ProfileConfig {
  std::string dir;         // for traces; empty: none are written
  int64_t skip_first = 0;  // in iterations of the loop, like the next three
  int64_t wait = 1, warmup = 1, active = 3;
  int64_t repeat = 1;  // rounds of these three; 0: until the end
  bool record_shapes = false, profile_memory = false, with_stack = false, with_flops = false;
};

struct Config {
  BackendConfig backend;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  CommunicationConfig communication;
  MemoryConfig memory;
  ProfileConfig profile;
  LaunchConfig launch;

  std::string file;                            // "" if none was read
  std::map<std::string, ValueSource> sources;  // by full key, only those not default
};

// The layers of one load. Later beats earlier: defaults, code, file, environment, command line.
struct ConfigRequest {
  std::optional<std::string> file;  // --config; else ./train.toml if it exists
  std::vector<std::pair<std::string, OptionValue>> code;  // AcceleratorOptions, by full key
  std::vector<std::string> overrides;                     // "key=value" of -o, value as in TOML
  const char* const* environment = nullptr;  // KEY=VALUE…, NULL-terminated; null: environ
};

// Throws Error(kConfig) naming file:line:column (or the variable, or -o), the key, and the nearest
// valid key. Environment: COUPLER_<TABLE>_<KEY> in capitals, e.g. COUPLER_BACKEND_USE. An empty
// variable counts as not set. Any other variable that begins with COUPLER_BACKEND_,
// COUPLER_TRAINING_, COUPLER_CHECKPOINT_, COUPLER_COMMUNICATION_, COUPLER_MEMORY_, COUPLER_PROFILE_
// or COUPLER_LAUNCH_ is an error. Plugin options have no variables, since plugin names and keys may
// both contain underscores.
Config load_config(const ConfigRequest& request);

// Removes --config F, --config=F, -o key=value and -okey=value from argv (everything before a bare
// "--"), keeps the rest in order, adjusts argc and sets argv[argc] to null. -okey=value is taken
// only if the key has a dot: -output=x stays. Throws Error(kUsage).
ConfigRequest take_config_arguments(int& argc, char** argv);

// Every key with its value, source, default and meaning, as `coupler config --explain` prints it,
// and what mixed precision does.
std::string explain_config(const Config& config);

}  // namespace coupler
