#include "coupler/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "track/progress_line.h"

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainApart = std::chrono::seconds(2);
constexpr auto kPlainAtLeast = std::chrono::seconds(30);
constexpr int kDefaultColumns = 80;

// The width asked for by COUPLER_TERMINAL; 0 where it is unset or no number.
int columns_from_environment() {
  const char* text = std::getenv("COUPLER_TERMINAL");
  if (text == nullptr) return 0;
  int columns = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), columns);
  return error == std::errc() && *end == '\0' && columns > 0 ? std::min(columns, 1000) : 0;
}

// The terminal's columns; 0 where standard error is none.
int terminal_columns() {
  if (const int columns = columns_from_environment(); columns > 0) return columns;
  if (::isatty(STDERR_FILENO) == 0) return 0;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

// One write a drawing, so that lines of several processes do not mix. What cannot be written is
// dropped: progress is no reason to end a training run.
void write_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

struct ProgressBar::State {
  ProgressView view;
  int columns = 0;
  Clock::time_point start = Clock::now();
  Clock::time_point drawn = start;
  int64_t tenth = 0;  // of the way, at the last plain line
  bool finished = false;

  int64_t tenth_now() const { return view.total > 0 ? view.done * 10 / view.total : 0; }

  bool due(Clock::time_point now) const {
    if (columns > 0) return now - drawn >= kRedraw;
    return now - drawn >= kPlainAtLeast || (tenth_now() > tenth && now - drawn >= kPlainApart);
  }

  void draw(Clock::time_point now, bool last) {
    view.seconds = std::chrono::duration<double>(now - start).count();
    if (columns > 0)
      write_error("\r" + bar_text(view, columns) + "\x1b[K" + (last ? "\n" : ""));
    else
      write_error(plain_text(view) + "\n");
    drawn = now;
    tenth = tenth_now();
  }
};

ProgressBar::ProgressBar(std::string label, int64_t total, bool enabled) {
  if (!enabled) return;
  state_ = std::make_unique<State>();
  state_->view.label = std::move(label);
  state_->view.total = std::max<int64_t>(total, 0);
  state_->columns = terminal_columns();
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::advance(int64_t steps) {
  if (!state_ || state_->finished) return;
  state_->view.done += steps;
  const auto now = Clock::now();
  if (state_->due(now)) state_->draw(now, /*last=*/false);
}

void ProgressBar::set_suffix(std::string suffix) {
  if (state_) state_->view.suffix = std::move(suffix);
}

void ProgressBar::finish() {
  if (!state_ || state_->finished) return;
  state_->finished = true;
  state_->draw(Clock::now(), /*last=*/true);
}

}  // namespace coupler
