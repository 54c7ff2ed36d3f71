// Where progress bars go: standard error, as a terminal or as plain lines, or nowhere; and which of
// several bars is drawn. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

enum class ProgressStyle { kOff, kPlain, kBar };

// What standard error and the environment say now: COUPLER_PROGRESS, COUPLER_TERMINAL, TERM.
ProgressStyle progress_style();

// The columns of the terminal now: it may be made wider or narrower meanwhile.
int progress_columns();

// A bar of those that live: the one that was made last is drawn.
class ProgressSlot {
 public:
  ProgressSlot(std::string label, int64_t total);
  ~ProgressSlot();
  ProgressSlot(const ProgressSlot&) = delete;
  ProgressSlot& operator=(const ProgressSlot&) = delete;

  void set_done(int64_t done);
  bool is_innermost() const;
  bool is_outermost() const;
  // "epochs 2/10 > files 3/4": those around this one.
  std::string around() const;

 private:
  const std::string label_;
  const int64_t total_;
  int64_t done_ = 0;  // under the lock of them all
};

}  // namespace coupler
