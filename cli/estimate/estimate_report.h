// What coupler estimate prints: one setting in parts, or many in a table; as text or JSON. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimate/ledger.h"

namespace coupler::cli {

struct EstimateRow {
  std::string setting;        // "ZeRO stage 2"
  std::string precision;      // "no", "bf16"
  std::string checkpointing;  // memory.activation_checkpointing; "" without
  int world = 1;
  bool training = true;
  bool activations_counted = true;
  MemoryEstimate memory;
};

// limit: 0 for none.
std::string estimate_text(const std::vector<EstimateRow>& rows, uint64_t limit);
std::string estimate_json(const std::vector<EstimateRow>& rows, uint64_t limit);

}  // namespace coupler::cli
