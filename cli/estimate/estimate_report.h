// The output of coupler estimate: one setting in detail, or several in a table; as text or JSON.
// Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "estimate/ledger.h"

namespace coupler::cli {

struct EstimateRow {
  std::string setting;        // "ZeRO stage 2"
  std::string precision;      // "no", "bf16"
  std::string checkpointing;  // memory.activation_checkpointing; "" for none
  int world_size = 1;
  bool activations_counted = true;
  estimate::MemoryEstimate memory;
};

// limit: in bytes; 0 for none.
std::string estimate_text(const std::vector<EstimateRow>& rows, uint64_t limit);
nlohmann::json estimate_json(const std::vector<EstimateRow>& rows, uint64_t limit);

}  // namespace coupler::cli
