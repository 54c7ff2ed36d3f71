// Config: everything a user can set, typed, with the source of every value. Plain data; a loaded
// Config never changes, so any thread may read it. Only load_config() creates one.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace coupler::config {

// One value of a [backend.NAME] table; the plugin defines what the key means.
using OptionValue = std::variant<std::string, int64_t, double, bool>;

// Where a value came from, for `coupler config --explain` and for messages about it.
struct ValueSource {
  enum class Kind { kDefault, kCode, kFile, kEnvironment, kCommandLine } kind = Kind::kDefault;
  std::string text;  // "train.toml:3:1", "COUPLER_BACKEND_USE", "-o backend.use"
};

// The size of a dimension of the mesh: a number of ranks, or what the other sizes leave.
struct MeshSize {
  static constexpr int64_t kRest = std::numeric_limits<int64_t>::min();
  int64_t ranks = 1;  // kRest: the rest
  static constexpr MeshSize rest() { return {kRest}; }
  bool is_rest() const { return ranks == kRest; }
  bool operator==(const MeshSize&) const = default;
};

struct PluginOption {
  std::string key;  // dotted below [backend.NAME]
  OptionValue value;
  ValueSource source;
};

// A struct for each table, with a field for each key: BackendKeys, TrainingConfig and so on.
#define COUPLER_TABLE(Struct, table) struct Struct {
#define COUPLER_KEY(type, name, initial, constraint, doc) type name = initial;
#define COUPLER_TABLE_END \
  }                       \
  ;
#include "config/keys.def"

// Whether gradients are sent as low-rank factors.
inline bool is_power_sgd(const CommunicationConfig& communication) {
  return communication.gradients == "powersgd" || communication.gradients == "batched_powersgd";
}

struct BackendConfig : BackendKeys {
  std::map<std::string, std::vector<PluginOption>> options;  // by plugin name
};

struct Config {
  BackendConfig backend;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  CommunicationConfig communication;
  MemoryConfig memory;
  ParallelConfig parallel;
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
// variable counts as not set. Any other variable that begins with COUPLER_<TABLE>_ is an error.
// Plugin options have no variables, since plugin names and keys may both contain underscores.
Config load_config(const ConfigRequest& request);

// Removes --config F, --config=F, -o key=value and -okey=value from argv (everything before a bare
// "--"), keeps the rest in order, adjusts argc and sets argv[argc] to null. -okey=value is taken
// only if the key has a dot: -output=x stays. Throws Error(kUsage).
ConfigRequest take_config_arguments(int& argc, char** argv);

// Every key with its value, source, default and meaning, as `coupler config --explain` prints it,
// and what mixed precision does.
std::string explain_config(const Config& config);

}  // namespace coupler::config
