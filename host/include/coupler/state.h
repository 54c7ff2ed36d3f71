// PartialState, AcceleratorState and GradientState: what the program's Accelerator knows, wherever
// in the program it is asked for. Views without data of their own: make one where it is needed.
// Used by the thread that trains.
//
//   if (coupler::PartialState().is_main_process()) write_report();
#pragma once

#include <c10/core/Device.h>
#include <coupler/processes.h>

#include <cstdint>
#include <string>

namespace coupler {

class Accelerator;

// Which process this is. Before there is an Accelerator it says what the launcher's variables say.
class PartialState : public Processes {
 public:
  // Throws Error(kConfig) where the launcher's variables contradict each other.
  PartialState();

  // Throws Error(kUsage) for several processes without an Accelerator.
  void wait_for_everyone(CallSite site = {}) override;
};

// How this process trains. The constructor throws Error(kUsage) where there is no Accelerator.
class AcceleratorState {
 public:
  AcceleratorState();

  static bool exists();  // whether there is an Accelerator

  // Of the Accelerator.
  at::Device device() const;
  std::string backend() const;          // "gloo_cpu"; "single" for one process
  std::string mixed_precision() const;  // "no", "bf16", "fp16", "fp8"
  // As the Accelerator's.
  int64_t gradient_accumulation_steps() const;

 private:
  Accelerator* accelerator_;
};

// Where in the loop the program is. Without an Accelerator: as for one process without
// accumulation, outside of any loop.
class GradientState {
 public:
  GradientState();

  int64_t num_steps() const;       // gradient_accumulation_steps
  bool sync_gradients() const;     // see Accelerator::sync_gradients
  bool in_dataloader() const;      // whether a loop over a prepared loader is under way
  bool end_of_dataloader() const;  // whether its batch is the epoch's last; false outside
  // How many samples of its batch, the first ones, are not repeated to fill it; -1 outside.
  int64_t own_samples() const;

 private:
  Accelerator* accelerator_;  // null: none
};

}  // namespace coupler
