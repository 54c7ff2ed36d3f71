#include "track/progress.h"

#include <coupler/tracker.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "base/status_line.h"
#include "base/text.h"

namespace coupler {
namespace {

constexpr size_t kMaxBar = 30;
constexpr size_t kMinBar = 5;

// Control characters would break the line; bytes of UTF-8 stay.
std::string one_line(const std::string& text) {
  std::string out = text;
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return out;
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// At most `limit` characters.
std::string cut(const std::string& text, size_t limit) {
  return fmt::format("{:.{}}", text, limit);
}

std::string counts(const track::ProgressView& view) {
  const double seconds = view.rate > 0 ? 1 / view.rate : view.seconds;
  const int64_t steps = view.rate > 0 ? 1 : view.done;  // in that time
  const std::string rate = track::rate_text(steps, seconds);
  if (view.total <= 0)
    return fmt::format("{} [{}, {}]", view.done, track::clock_text(view.seconds), rate);
  const double left =
      steps > 0 ? seconds * static_cast<double>(std::max<int64_t>(view.total - view.done, 0)) /
                      static_cast<double>(steps)
                : -1;
  return fmt::format("{}/{} [{}<{}, {}]", view.done, view.total, track::clock_text(view.seconds),
                     track::clock_text(left), rate);
}

int percent(const track::ProgressView& view) {
  return static_cast<int>(
      100.0 *
      std::clamp(static_cast<double>(view.done) / static_cast<double>(view.total), 0.0, 1.0));
}

}  // namespace

std::string track::clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 359'999'999) return "--:--";
  const auto whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string track::rate_text(int64_t done, double seconds) {
  if (done <= 0 || !(seconds > 0)) return "-/s";
  const double rate = static_cast<double>(done) / seconds;
  if (rate < 1) return fmt::format("{:.3g} s/step", 1 / rate);
  if (rate < 1e3) return fmt::format("{:.3g}/s", rate);
  if (rate < 1e6) return fmt::format("{:.3g}k/s", rate / 1e3);
  return fmt::format("{:.3g}M/s", rate / 1e6);
}

std::string track::brief_text(const std::string& label, int64_t done, int64_t total) {
  std::string text = one_line(label);
  if (!text.empty()) text += ' ';
  return text + (total > 0 ? fmt::format("{}/{}", done, total) : fmt::format("{}", done));
}

std::string track::bar_text(const track::ProgressView& view, int columns) {
  const auto width = static_cast<size_t>(std::max(columns - 1, 1));
  const std::string label = view.around.empty() ? view.label : view.around + " > " + view.label;
  std::string line = cut(one_line(label), width / 2);
  if (!line.empty()) line += ' ';
  std::string rest = counts(view);
  if (!view.suffix.empty()) rest += " " + one_line(view.suffix);
  if (view.total > 0) {
    line += fmt::format("{:3}% ", percent(view));
    const size_t used = characters(line) + characters(rest) + 3;  // |…| and a space
    const size_t cells = used < width ? std::min(width - used, kMaxBar) : 0;
    if (cells >= kMinBar) {
      const size_t full = cells * static_cast<size_t>(percent(view)) / 100;
      line += fmt::format("|{}{}| ", std::string(full, '#'), std::string(cells - full, '.'));
    }
  }
  return cut(line + rest, width);
}

std::string track::plain_text(const track::ProgressView& view) {
  std::string line = one_line(view.label);
  if (!line.empty()) line += ": ";
  if (view.total > 0) line += fmt::format("{}% ", percent(view));
  line += counts(view);
  if (!view.suffix.empty()) line += " " + one_line(view.suffix);
  return line;
}

namespace {

enum class ProgressStyle { kOff, kPlain, kBar };

constexpr int kDefaultColumns = 80;

// The width given by COUPLER_TERMINAL; 0 if it is unset or not a number.
int columns_from_environment() {
  const auto columns = to_number<int>(environment_value("COUPLER_TERMINAL"));
  return std::clamp(columns.value_or(0), 0, 1000);
}

// Whether bars are drawn on standard error, printed as plain lines, or neither: depends on standard
// error, COUPLER_PROGRESS, COUPLER_TERMINAL and TERM; not cached.
ProgressStyle progress_style() {
  const std::string wanted = environment_value("COUPLER_PROGRESS");
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
  const bool terminal = ::isatty(STDERR_FILENO) != 0 && environment_value("TERM") != "dumb";
  return terminal ? ProgressStyle::kBar : ProgressStyle::kPlain;
}

// The terminal's current number of columns; it may be resized.
int progress_columns() {
  if (const int columns = columns_from_environment(); columns > 0) return columns;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

class ProgressSlot;

struct Living {
  std::mutex mutex;
  std::vector<const ProgressSlot*> slots;  // outermost first
};

Living& living() {
  static auto* const instance = new Living;
  return *instance;
}

// A live bar; of several, the one created last is drawn. Thread-safe.
class ProgressSlot {
 public:
  ProgressSlot(std::string label, int64_t total) : label_(std::move(label)), total_(total) {
    const std::lock_guard lock(all_.mutex);
    all_.slots.push_back(this);
  }
  ~ProgressSlot() {
    const std::lock_guard lock(all_.mutex);
    std::erase(all_.slots, this);
  }
  ProgressSlot(const ProgressSlot&) = delete;
  ProgressSlot& operator=(const ProgressSlot&) = delete;

  void set_done(int64_t done) {
    const std::lock_guard lock(all_.mutex);
    done_ = done;
  }
  bool is_innermost() const {
    const std::lock_guard lock(all_.mutex);
    return all_.slots.back() == this;
  }
  bool is_outermost() const {
    const std::lock_guard lock(all_.mutex);
    return all_.slots.front() == this;
  }
  // "epochs 2/10 > files 3/4": the outer bars.
  std::string around() const {
    const std::lock_guard lock(all_.mutex);
    std::string text;
    for (const ProgressSlot* slot : all_.slots) {
      if (slot == this) break;
      if (!text.empty()) text += " > ";
      text += track::brief_text(slot->label_, slot->done_, slot->total_);
    }
    return text;
  }

 private:
  Living& all_ = living();
  const std::string label_;
  const int64_t total_;
  int64_t done_ = 0;  // guarded by the lock of all slots
};

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainApart = std::chrono::seconds(2);
constexpr auto kPlainAtLeast = std::chrono::seconds(30);
constexpr double kRateMemory = 5;  // seconds over which the displayed rate is averaged

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

struct ProgressBar::State {
  State(std::string label, int64_t total, ProgressStyle style)
      : bar(style == ProgressStyle::kBar), slot(label, total) {
    view.label = std::move(label);
    view.total = total;
  }

  int64_t tenth_now() const { return view.total > 0 ? view.done * 10 / view.total : 0; }

  bool due(Clock::time_point now) const {
    if (bar) return now - drawn >= kRedraw;
    return now - drawn >= kPlainAtLeast || (tenth_now() > tenth && now - drawn >= kPlainApart);
  }

  void draw(Clock::time_point now, bool last);

  const bool bar;  // else plain lines
  track::ProgressView view;
  std::string suffix;
  std::vector<std::pair<std::string, double>> values;
  ProgressSlot slot;
  Clock::time_point start = Clock::now();
  Clock::time_point drawn = start;
  int64_t done_when_drawn = 0;
  int64_t tenth = 0;  // of the total, at the last plain line
  bool finished = false;
};

void ProgressBar::State::draw(Clock::time_point now, bool last) {
  const double since = seconds_between(drawn, now);
  if (since > 0 && view.done > done_when_drawn) {
    const double rate = static_cast<double>(view.done - done_when_drawn) / since;
    const double weight = view.rate > 0 ? 1 - std::exp(-since / kRateMemory) : 1;
    view.rate += weight * (rate - view.rate);
  }
  drawn = now;
  done_when_drawn = view.done;
  tenth = tenth_now();
  view.seconds = seconds_between(start, now);
  if (last) view.rate = 0;  // shows the overall average
  view.suffix.clear();
  for (const auto& [name, value] : values) {
    view.suffix += fmt::format("{}{} {:.4g}", view.suffix.empty() ? "" : ", ", name, value);
  }
  if (!suffix.empty()) view.suffix += (view.suffix.empty() ? "" : " ") + suffix;

  if (!bar) return write_error_lines(track::plain_text(view) + "\n");
  slot.set_done(view.done);
  if (!slot.is_innermost()) {
    // Ended before its inner bar, which continues below it.
    if (last) write_error_lines(track::bar_text(view, progress_columns()) + "\n");
    return;
  }
  view.around = slot.around();
  if (!last) return show_status_line(track::bar_text(view, progress_columns()));
  if (slot.is_outermost()) return leave_status_line(track::bar_text(view, progress_columns()));
  hide_status_line();
}

ProgressBar::ProgressBar(std::string label, int64_t total)
    : ProgressBar(std::move(label), total, log_rank_of_process() <= 0) {}

ProgressBar::ProgressBar(std::string label, int64_t total, bool enabled) {
  const ProgressStyle style = enabled ? progress_style() : ProgressStyle::kOff;
  if (style == ProgressStyle::kOff) return;
  state_ = std::make_unique<State>(std::move(label), std::max<int64_t>(total, 0), style);
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::advance(int64_t steps) {
  if (!state_ || state_->finished) return;
  state_->view.done += steps;
  const auto now = Clock::now();
  if (state_->due(now)) state_->draw(now, /*last=*/false);
}

void ProgressBar::set_value(std::string_view name, double value) {
  if (!state_) return;
  for (auto& [known, number] : state_->values) {
    if (known == name) {
      number = value;
      return;
    }
  }
  state_->values.emplace_back(name, value);
}

void ProgressBar::set_suffix(std::string suffix) {
  if (state_) state_->suffix = std::move(suffix);
}

void ProgressBar::finish() {
  if (!state_ || state_->finished) return;
  state_->finished = true;
  state_->draw(Clock::now(), /*last=*/true);
  state_.reset();  // no longer around others
}

}  // namespace coupler
