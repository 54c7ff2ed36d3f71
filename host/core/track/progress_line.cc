#include "track/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

std::string cut(const std::string& text, size_t limit) {
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (continues(text[i])) continue;
    if (kept == limit) return text.substr(0, i);
    ++kept;
  }
  return text;
}

std::string counts(const ProgressView& view) {
  const double seconds = view.rate > 0 ? 1 / view.rate : view.seconds;
  const int64_t steps = view.rate > 0 ? 1 : view.done;  // in that time
  const std::string rate = rate_text(steps, seconds);
  if (view.total <= 0) return fmt::format("{} [{}, {}]", view.done, clock_text(view.seconds), rate);
  const double left =
      steps > 0 ? seconds * static_cast<double>(std::max<int64_t>(view.total - view.done, 0)) /
                      static_cast<double>(steps)
                : -1;
  return fmt::format("{}/{} [{}<{}, {}]", view.done, view.total, clock_text(view.seconds),
                     clock_text(left), rate);
}

int percent(const ProgressView& view) {
  return static_cast<int>(
      100.0 *
      std::clamp(static_cast<double>(view.done) / static_cast<double>(view.total), 0.0, 1.0));
}

}  // namespace

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 359'999'999) return "--:--";
  const auto whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string rate_text(int64_t done, double seconds) {
  if (done <= 0 || !(seconds > 0)) return "-/s";
  const double rate = static_cast<double>(done) / seconds;
  if (rate < 1) return fmt::format("{:.3g} s/step", 1 / rate);
  if (rate < 1e3) return fmt::format("{:.3g}/s", rate);
  if (rate < 1e6) return fmt::format("{:.3g}k/s", rate / 1e3);
  return fmt::format("{:.3g}M/s", rate / 1e6);
}

std::string brief_text(const std::string& label, int64_t done, int64_t total) {
  std::string text = one_line(label);
  if (!text.empty()) text += ' ';
  return text + (total > 0 ? fmt::format("{}/{}", done, total) : fmt::format("{}", done));
}

std::string bar_text(const ProgressView& view, int columns) {
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

std::string plain_text(const ProgressView& view) {
  std::string line = one_line(view.label);
  if (!line.empty()) line += ": ";
  if (view.total > 0) line += fmt::format("{}% ", percent(view));
  line += counts(view);
  if (!view.suffix.empty()) line += " " + one_line(view.suffix);
  return line;
}

}  // namespace coupler
