// ProgressBar: how far a loop is, its rate and the time left, on standard error. On a terminal it
// is one line redrawn ten times a second at most; elsewhere a plain line at every tenth of the way,
// at least two seconds apart, and every 30 seconds. Not thread-safe: one thread advances it.
//
//   coupler::ProgressBar bar("epoch 1", loader.size(), accelerator.is_main_process());
//   for (auto& batch : loader) { …; bar.set_suffix("loss 0.52"); bar.advance(); }
//
// A terminal is what isatty says of standard error; behind a pipe whose other end is one (as under
// the launcher) COUPLER_TERMINAL=<columns> says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace coupler {

class ProgressBar {
 public:
  // `total` steps, 0 where unknown: then it only counts. Where not `enabled` it prints nothing: let
  // one rank draw.
  ProgressBar(std::string label, int64_t total, bool enabled = true);
  ~ProgressBar();  // finishes

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Costs a clock reading but for the few calls that draw.
  void advance(int64_t steps = 1);

  // A short text behind the bar, shown from the next drawing on.
  void set_suffix(std::string suffix);

  // Draws the final state and ends the line; later calls do nothing.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null where not enabled
};

}  // namespace coupler
