// ProgressBar: how far a loop is, its rate, the time left and what the loop says of itself (its
// loss), on standard error. On a terminal it is one line redrawn ten times a second at most, log
// lines and accelerator.print go above it, and of bars in each other the innermost is drawn, behind
// the counts of those around it. Elsewhere it is a plain line at every tenth of the way, at least
// two seconds apart, and every 30 seconds. Not thread-safe: one thread advances it; others may have
// bars, too.
//
//   coupler::ProgressBar bar("epoch 1", loader.size());
//   for (auto& batch : loader) { …; bar.set_value("loss", loss); bar.advance(); }
//
// A terminal is what isatty says of standard error, unless TERM is dumb; behind a pipe whose other
// end is one (as under the launcher) COUPLER_TERMINAL=<columns> says so. COUPLER_PROGRESS=off draws
// nothing, =plain only lines. There are no colours, so NO_COLOR changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace coupler {

class ProgressBar {
 public:
  // `total` steps, 0 where unknown: then it only counts. Of a job's processes the main one draws.
  ProgressBar(std::string label, int64_t total);
  // Where not `enabled` it prints nothing.
  ProgressBar(std::string label, int64_t total, bool enabled);
  ~ProgressBar();  // finishes

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Costs a clock reading but for the few calls that draw.
  void advance(int64_t steps = 1);

  // "loss 0.5213" behind the bar, from the next drawing on; until then nothing is formatted.
  void set_value(std::string_view name, double value);

  // A short text behind that.
  void set_suffix(std::string suffix);

  // Draws the final state and ends the line; a bar in another leaves none. Later calls do nothing.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null where not enabled, or finished
};

}  // namespace coupler
