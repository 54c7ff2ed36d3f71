// Selects where progress bars go (standard error, as bar or plain lines, or nowhere) and which of
// several bars is drawn. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

enum class ProgressStyle { kOff, kPlain, kBar };

// Depends on standard error, COUPLER_PROGRESS, COUPLER_TERMINAL and TERM; not cached.
ProgressStyle progress_style();

// The terminal's current number of columns; it may be resized.
int progress_columns();

// A live bar; the one created last is drawn.
class ProgressSlot {
 public:
  ProgressSlot(std::string label, int64_t total);
  ~ProgressSlot();
  ProgressSlot(const ProgressSlot&) = delete;
  ProgressSlot& operator=(const ProgressSlot&) = delete;

  void set_done(int64_t done);
  bool is_innermost() const;
  bool is_outermost() const;
  // "epochs 2/10 > files 3/4": the outer bars.
  std::string around() const;

 private:
  const std::string label_;
  const int64_t total_;
  int64_t done_ = 0;  // guarded by the lock of all slots
};

}  // namespace coupler
