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
};

// Counts the elements of the row.
void count_elements(const estimate::StepLog& log, EstimateRow& row);

// limit: in bytes; 0 for none.
std::string estimate_text(const std::vector<EstimateRow>& rows, uint64_t limit);
nlohmann::json estimate_json(const std::vector<EstimateRow>& rows, uint64_t limit);

}  // namespace coupler::cli
