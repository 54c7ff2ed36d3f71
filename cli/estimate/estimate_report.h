// The output of coupler estimate: one setting in detail, or several in a table; as text or JSON.
// Pure functions.
#pragma once

#include <coupler/processes.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "estimate/ledger.h"
#include "estimate/step_log.h"

namespace coupler::cli {

struct EstimateRow {
  std::string setting;        // "ZeRO stage 2"
  std::string precision;      // "no", "bf16"
  std::string checkpointing;  // memory.activation_checkpointing; "" for none
  int world_size = 1;
  Mesh mesh = Mesh({1, 1, 1, 1, 1, 1}, 0);
  // Elements of all parameters, before a backend shards them: of the models, and as tensor and
  // expert divide them.
  uint64_t whole_elements = 0, elements = 0;
  bool activations_counted = true;
  estimate::MemoryEstimate memory;
  // Of a pipeline of several stages: all others are about the stage that needs most,
  // pipeline.stage.
  std::vector<uint64_t> stage_peaks = {};
  estimate::LoggedPipeline pipeline = {};
};

// Puts what a rank with this log needs into the row. Of a pipeline, call it for each stage in
// order.
void take_estimate(const estimate::StepLog& log, estimate::MemoryEstimate memory, EstimateRow& row);
// In percent: the time in which the row's ranks wait while their pipeline fills and drains.
int idle_percent(const EstimateRow& row);

// limit: in bytes; 0 for none.
std::string estimate_text(const std::vector<EstimateRow>& rows, uint64_t limit);
nlohmann::json estimate_json(const std::vector<EstimateRow>& rows, uint64_t limit);

}  // namespace coupler::cli
