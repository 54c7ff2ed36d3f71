// StepState: the loop's position in gradient accumulation, which decides whether an optimizer's
// step and zero_grad act. Owned by the Accelerator; used by the training thread.
#pragma once

#include <cstdint>

namespace coupler {

struct StepState {
  bool sync = true;               // gradients are averaged in this scope; true outside one
  uint64_t scope = 0;             // the number of the accumulate() scope; 0 outside one
  bool first_of_window = true;    // no earlier batch is accumulated
  bool backward_of_only = false;  // backward has run in this scope, which has one model
};

}  // namespace coupler
