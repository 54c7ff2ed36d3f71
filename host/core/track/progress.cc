#include <coupler/progress.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_line.h"
#include "track/progress_line.h"
#include "track/progress_place.h"

namespace coupler {
namespace {

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
  ProgressView view;
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

  if (!bar) return write_error_lines(plain_text(view) + "\n");
  slot.set_done(view.done);
  if (!slot.is_innermost()) {
    // Ended before its inner bar, which continues below it.
    if (last) write_error_lines(bar_text(view, progress_columns()) + "\n");
    return;
  }
  view.around = slot.around();
  if (!last) return show_status_line(bar_text(view, progress_columns()));
  if (slot.is_outermost()) return leave_status_line(bar_text(view, progress_columns()));
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
