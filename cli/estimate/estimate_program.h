// The dry runs of one program, one per requested precision, checkpointing pattern, mesh and stage
// of a pipeline, and the memory that settings need according to them. Single-threaded.
#pragma once

#include <coupler/processes.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/estimate/estimate_report.h"
#include "cli/text/command.h"
#include "config/config.h"
#include "estimate/settings.h"
#include "estimate/step_log.h"

namespace coupler::cli {

// What `coupler estimate` and `coupler config recommend` are asked.
struct EstimateRequest {
  config::ConfigRequest config;
  int64_t world_size = 0;            // 0: launch.processes
  uint64_t limit = 0;                // bytes; 0: none given
  std::vector<std::string> program;  // after --
  std::string disk;                  // the folder of settings that use a disk
};

// Throws Error(kUsage) naming the option with a wrong value.
EstimateRequest read_estimate_request(const Arguments& arguments);

class ProgramEstimates {
 public:
  // Borrows request and config. Throws Error(kConfig) if [parallel] has no mesh of that many ranks.
  ProgramEstimates(const EstimateRequest& request, const config::Config& config);

  int world_size() const { return world_size_; }
  // With the configured backend, checkpointing patterns, precision and mesh.
  EstimateRow configured();
  // precision: "no" or "bf16". checkpointing: of the modules that pattern() names. mesh: of
  // world_size() ranks; null: the configured one. Throws Error if the program cannot be run dry
  // under it, or the backend cannot shard as it says.
  EstimateRow of(const estimate::Setting& setting, const std::string& precision, bool checkpointing,
                 const Mesh* mesh = nullptr);
  // Whether the program makes a pipeline, if only of one stage.
  bool makes_pipeline(const std::string& precision, const Mesh* mesh = nullptr);
  // Why the program cannot be run dry under that mesh, in one line; "" if it can.
  std::string refusal(const std::string& precision, const Mesh& mesh);
  // The configured checkpointing patterns, else the repeated modules of the model; "" for none, and
  // for models with mixtures of experts.
  std::string pattern(const Mesh* mesh = nullptr);
  // The most ranks over which the experts of the program's mixtures divide; 0: it has none, or no
  // dry run so far made a log.
  uint64_t experts() const;

 private:
  // How a program ended.
  struct DryRun {
    std::optional<estimate::StepLog> log = {};
    std::string output;  // of a program that made none
    int status = 0;
  };
  const DryRun& run(const std::string& precision, const std::string& pattern, const Mesh* mesh,
                    int stage = 0);
  const estimate::StepLog& log(const std::string& precision, const std::string& pattern,
                               const Mesh* mesh = nullptr, int stage = 0);
  EstimateRow row(const std::string& setting, const config::BackendConfig& backend,
                  const config::MemoryConfig& memory, const std::string& precision,
                  const std::string& pattern, const Mesh* mesh);

  const EstimateRequest& request_;
  const config::Config& config_;
  const int world_size_;
  // By what the program is run with: the stage, and overrides of its configuration.
  std::map<std::pair<int, std::vector<std::string>>, DryRun> runs_;
};

}  // namespace coupler::cli
