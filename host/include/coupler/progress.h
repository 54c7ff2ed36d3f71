// ProgressBar: shows a loop's progress, its rate, the time left and values such as the loss, on
// standard error. On a terminal it is one line, redrawn at most ten times per second; log lines and
// accelerator.print go above it, and of nested bars the innermost is drawn, after the counts of the
// enclosing ones. Otherwise it prints a plain line at every tenth of the way, at least two seconds
// apart, and every 30 seconds. Not thread-safe: one thread advances it; other threads may have
// their own bars.
//
//   coupler::ProgressBar bar("epoch 1", loader.size());
//   for (auto& batch : loader) { …; bar.set_value("loss", loss); bar.advance(); }
//
// Standard error counts as a terminal if isatty says so and TERM is not dumb, or if
// COUPLER_TERMINAL=<columns> is set because a pipe leads to one (as under the launcher).
// COUPLER_PROGRESS=off draws nothing, =plain only lines. There are no colors, so NO_COLOR has no
// effect.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace coupler {

class ProgressBar {
 public:
  // `total`: number of steps; if 0 (unknown), the bar only counts. Only the job's main process
  // draws.
  ProgressBar(std::string label, int64_t total);
  // Prints nothing unless `enabled`.
  ProgressBar(std::string label, int64_t total, bool enabled);
  ~ProgressBar();  // finishes

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Costs one clock read, except for the few calls that draw.
  void advance(int64_t steps = 1);

  // Shows "loss 0.5213" after the bar from the next redraw on; nothing is formatted until then.
  void set_value(std::string_view name, double value);

  // Shows a short string after the values.
  void set_suffix(std::string suffix);

  // Draws the final state and ends the line; a nested bar is erased. Later calls do nothing.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if not enabled or finished
};

}  // namespace coupler
