// The dry runs of one program, one for each precision and way of checkpointing asked for, and what
// settings need by them. Single-threaded.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/estimate/estimate_report.h"
#include "cli/estimate/estimate_words.h"
#include "estimate/settings.h"
#include "estimate/step_log.h"

namespace coupler::cli {

class ProgramEstimates {
 public:
  ProgramEstimates(const EstimateWords& words, const Config& config);

  int world() const { return world_; }
  // As configured: its own checkpointing patterns and precision.
  EstimateRow configured();
  // precision: "no", "bf16". Checkpointing of its repeated modules, where there are some.
  EstimateRow of(const Setting& setting, const std::string& precision, bool checkpointing);
  // The pattern that checkpointing means; "" where it is of no use.
  std::string pattern();

 private:
  const StepLog& log(const std::string& precision, const std::string& pattern);

  const EstimateWords& words_;
  const Config& config_;
  const int world_;
  std::map<std::pair<std::string, std::string>, StepLog> logs_;
};

}  // namespace coupler::cli
