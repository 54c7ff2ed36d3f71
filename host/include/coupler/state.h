// PartialState, AcceleratorState and GradientState: the state of the program's Accelerator,
// available anywhere in the program. They are views without data; create one where needed. Used by
// the training thread.
//
//   if (coupler::PartialState().is_main_process()) write_report();
#pragma once

#include <c10/core/Device.h>
#include <coupler/processes.h>

#include <cstdint>
#include <string>

namespace coupler {

class Accelerator;

// This process's rank. Before an Accelerator exists, it is taken from the launcher's variables.
class PartialState : public Processes {
 public:
  // Throws Error(kConfig) if the launcher's variables contradict each other.
  PartialState();

  // Throws Error(kUsage) for several processes without an Accelerator.
  void wait_for_everyone(CallSite site = {}) override;
};

// How this process trains. The constructor throws Error(kUsage) if there is no Accelerator.
class AcceleratorState {
 public:
  AcceleratorState();

  static bool exists();  // whether there is an Accelerator

  // As in Accelerator.
  at::Device device() const;
  std::string backend() const;          // "gloo_cpu"; "single" for one process
  std::string mixed_precision() const;  // "no", "bf16", "fp16", "fp8"
  // As in Accelerator.
  int64_t gradient_accumulation_steps() const;

 private:
  Accelerator* accelerator_;
};

// The program's position in the training loop. Without an Accelerator: as for one process without
// accumulation, outside of any loop.
class GradientState {
 public:
  GradientState();

  int64_t num_steps() const;       // gradient_accumulation_steps
  bool sync_gradients() const;     // see Accelerator::sync_gradients
  bool in_dataloader() const;      // whether a loop over a prepared loader is running
  bool end_of_dataloader() const;  // whether its batch is the epoch's last; false outside
  // How many leading samples of its batch are not repeated to fill it; -1 outside.
  int64_t own_samples() const;

 private:
  Accelerator* accelerator_;  // null: none
};

}  // namespace coupler
