// What a progress bar shows, as text: pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

struct ProgressView {
  std::string label;
  int64_t done = 0;
  int64_t total = 0;  // 0: unknown
  double seconds = 0;
  std::string suffix;
  double rate = 0;     // steps a second, lately; 0: on the average
  std::string around;  // what stands before the label: the bars around this one
};

// "0:07", "12:34", "1:02:03"; "--:--" where it is not finite or negative.
std::string clock_text(double seconds);

// "1.24k/s" per second from 1 up, "3.20 s/step" below; "-/s" where nothing can be said.
std::string rate_text(int64_t done, double seconds);

// "epochs 2/10": a bar around the one that is drawn.
std::string brief_text(const std::string& label, int64_t done, int64_t total);

// One line without control characters, of at most `columns` - 1 characters (the last column would
// wrap on some terminals). Where room is short the label gets half of it, the bar shrinks and goes,
// then the suffix is cut.
std::string bar_text(const ProgressView& view, int columns);

// The same for a log: no bar, no padding, no limit.
std::string plain_text(const ProgressView& view);

}  // namespace coupler
