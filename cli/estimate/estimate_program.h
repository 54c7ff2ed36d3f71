// The dry runs of one program, one per requested precision and checkpointing pattern, and the
// memory that settings need according to them. Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/estimate/estimate_report.h"
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

class ProgramEstimates {
 public:
  // Borrows request and config.
  ProgramEstimates(const EstimateRequest& request, const config::Config& config);

  int world_size() const { return world_size_; }
  // With the configured backend, checkpointing patterns and precision.
  EstimateRow configured();
  // precision: "no" or "bf16". checkpointing: of the modules that pattern() names.
  EstimateRow of(const estimate::Setting& setting, const std::string& precision,
                 bool checkpointing);
  // The configured checkpointing patterns, else the repeated modules of the model; "" for none.
  std::string pattern();

 private:
  const estimate::StepLog& log(const std::string& precision, const std::string& pattern);

  const EstimateRequest& request_;
  const config::Config& config_;
  const int world_size_;
  std::map<std::pair<std::string, std::string>, estimate::StepLog> logs_;
};

}  // namespace coupler::cli
