#include "track/progress_place.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "track/progress_line.h"

namespace coupler {
namespace {

constexpr int kDefaultColumns = 80;

// The width given by COUPLER_TERMINAL; 0 if it is unset or not a number.
int columns_from_environment() {
  const std::string text = environment_text("COUPLER_TERMINAL");
  int columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && columns > 0 ? std::min(columns, 1000) : 0;
}

struct Living {
  std::mutex mutex;
  std::vector<const ProgressSlot*> slots;  // outermost first
};

Living& living() {
  static auto* const instance = new Living;
  return *instance;
}

}  // namespace

ProgressStyle progress_style() {
  const std::string wanted = environment_text("COUPLER_PROGRESS");
  if (wanted == "off") return ProgressStyle::kOff;
  if (wanted == "plain") return ProgressStyle::kPlain;
  if (!wanted.empty() && wanted != "bar") {
    static std::once_flag once;
    std::call_once(once, [&] {
      log(LogLevel::kWarning, "track",
          "COUPLER_PROGRESS is '" + wanted + "', which is ignored; valid: off, plain, bar");
    });
  }
  if (columns_from_environment() > 0) return ProgressStyle::kBar;
  const bool terminal = ::isatty(STDERR_FILENO) != 0 && environment_text("TERM") != "dumb";
  return terminal ? ProgressStyle::kBar : ProgressStyle::kPlain;
}

int progress_columns() {
  if (const int columns = columns_from_environment(); columns > 0) return columns;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

ProgressSlot::ProgressSlot(std::string label, int64_t total)
    : label_(std::move(label)), total_(total) {
  Living& all = living();
  const std::lock_guard lock(all.mutex);
  all.slots.push_back(this);
}

ProgressSlot::~ProgressSlot() {
  Living& all = living();
  const std::lock_guard lock(all.mutex);
  all.slots.erase(std::remove(all.slots.begin(), all.slots.end(), this), all.slots.end());
}

void ProgressSlot::set_done(int64_t done) {
  const std::lock_guard lock(living().mutex);
  done_ = done;
}

bool ProgressSlot::is_innermost() const {
  Living& all = living();
  const std::lock_guard lock(all.mutex);
  return all.slots.back() == this;
}

bool ProgressSlot::is_outermost() const {
  Living& all = living();
  const std::lock_guard lock(all.mutex);
  return all.slots.front() == this;
}

std::string ProgressSlot::around() const {
  Living& all = living();
  const std::lock_guard lock(all.mutex);
  std::string text;
  for (const ProgressSlot* slot : all.slots) {
    if (slot == this) break;
    if (!text.empty()) text += " > ";
    text += brief_text(slot->label_, slot->done_, slot->total_);
  }
  return text;
}

}  // namespace coupler
