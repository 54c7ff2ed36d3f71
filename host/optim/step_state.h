// StepState: where in gradient accumulation the loop is; what decides whether an optimizer's step
// and zero_grad act. Kept by the Accelerator; used by the thread that trains.
#pragma once

#include <cstdint>

namespace coupler {

struct StepState {
  bool sync = true;               // gradients are averaged in this scope (always, outside of one)
  uint64_t scope = 0;             // a number for each accumulate() scope; 0 outside
  bool first_of_window = true;    // no earlier batch is accumulated
  bool backward_of_only = false;  // backward has run in this scope, which has one model
};

}  // namespace coupler
