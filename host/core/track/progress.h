// The text of a progress bar. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

namespace coupler::track {

struct ProgressView {
  std::string label;
  int64_t done = 0;
  int64_t total = 0;  // 0: unknown
  double seconds = 0;
  std::string suffix;
  double rate = 0;     // recent steps per second; 0: use the overall average
  std::string around;  // precedes the label: the outer bars
};

// "0:07", "12:34", "1:02:03"; "--:--" if it is not finite or negative.
std::string clock_text(double seconds);

// "1.24k/s" from one step per second up, "3.20 s/step" below; "-/s" if unknown.
std::string rate_text(int64_t done, double seconds);

// "epochs 2/10": for an outer bar.
std::string brief_text(const std::string& label, int64_t done, int64_t total);

// One line without control characters, of at most `columns` - 1 characters (some terminals wrap at
// the last column). If space is short, the label gets half of it, the bar shrinks and disappears,
// then the suffix is truncated.
std::string bar_text(const ProgressView& view, int columns);

// The same for a log, without a bar, padding or limit.
std::string plain_text(const ProgressView& view);

}  // namespace coupler::track
