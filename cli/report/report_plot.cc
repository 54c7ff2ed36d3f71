#include "cli/report/report_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace coupler::cli {
namespace {

constexpr double kWidth = 480, kHeight = 230, kLeft = 58, kBottom = 38, kTop = 12, kRight = 16;
constexpr size_t kDrawn = 1000;   // points per line; of more, every k-th and the last are drawn
constexpr size_t kSmooth = 200;   // lines of at least this many points also get their mean
constexpr size_t kTooltips = 80;  // per line

struct Axis {
  double low = 0, high = 1;  // the visible range
  std::vector<double> ticks;
};

// The tick distance: 1, 2, 2.5 or 5 times a power of ten, at least range / count.
double tick_of(double range, int count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

Axis axis_of(const std::vector<Line>& lines, double Point::*field, bool widened) {
  double low = lines[0].points[0].*field, high = low;
  for (const Line& line : lines) {
    for (const Point& point : line.points) {
      low = std::min(low, point.*field);
      high = std::max(high, point.*field);
    }
  }
  // Leave room around values that are all equal, or differ only in their last digits.
  const double least = std::max(std::abs(low), std::abs(high)) * 1e-9;
  if (high - low <= least) {
    const double room = low == 0 ? 1 : std::abs(low) / 10;
    low -= room;
    high += room;
  }
  Axis axis;
  const double tick = tick_of(high - low, 4);
  axis.low = widened ? std::floor(low / tick + 1e-9) * tick : low;
  axis.high = widened ? std::ceil(high / tick - 1e-9) * tick : high;
  for (double k = std::ceil(axis.low / tick - 1e-9); k * tick <= axis.high + 1e-9 * tick; ++k)
    axis.ticks.push_back(k * tick + 0.0);  // no negative zero
  return axis;
}

class Drawing {
 public:
  Drawing(const std::vector<Line>& lines, std::string unit)
      : x_(axis_of(lines, &Point::step, /*widened=*/false)),
        y_(axis_of(lines, &Point::value, /*widened=*/true)),
        unit_(std::move(unit)) {}

  void axes(const std::string& title) {
    out_ += fmt::format("<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\">",
                        escaped(title), kWidth, kHeight);
    for (const double value : y_.ticks) {
      out_ += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
          kLeft, kWidth - kRight, down(value), down(value), kLeft - 8, down(value) + 4,
          short_number(value));
    }
    for (const double step : x_.ticks) {
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                          across(step), kHeight - kBottom + 16, short_number(step));
    }
    out_ += fmt::format("<text class=\"unit\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                        kWidth - kRight, kHeight - 5, escaped(unit_));
  }

  void line(const std::vector<Point>& points, const char* style) {
    if (points.size() == 1) return;
    std::string path;
    const size_t every = std::max<size_t>(1, points.size() / kDrawn);
    for (size_t i = 0; i + 1 < points.size(); i += every) path += place(points[i]) + " ";
    path += place(points.back());
    out_ += fmt::format("<polyline class=\"{}\" points=\"{}\"/>", style, path);
  }

  void dot(const Point& point, const char* style) {
    out_ += fmt::format("<circle class=\"{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", style,
                        across(point.step), down(point.value));
  }

  void tooltips(const Line& line) {
    const size_t every = std::max<size_t>(1, line.points.size() / kTooltips);
    const std::string name = line.name.empty() ? "" : escaped(line.name) + ", ";
    for (size_t i = 0; i < line.points.size(); i += every) {
      const Point& point = line.points[i];
      out_ += fmt::format(
          "<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\"><title>{}{} {}: {}</title>"
          "</circle>",
          across(point.step), down(point.value), name, escaped(unit_), short_number(point.step),
          short_number(point.value));
    }
  }

  std::string done() { return out_ + "</svg>"; }

 private:
  double across(double step) const {
    return kLeft + (step - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double down(double value) const {
    return kHeight - kBottom - (value - y_.low) / (y_.high - y_.low) * (kHeight - kBottom - kTop);
  }
  std::string place(const Point& point) const {
    return fmt::format("{:.1f},{:.1f}", across(point.step), down(point.value));
  }

  const Axis x_, y_;
  const std::string unit_;
  std::string out_;
};

// Each point becomes the mean of itself and up to `around` points on either side.
std::vector<Point> smoothed(const std::vector<Point>& points, size_t around) {
  std::vector<double> sums = {0};
  for (const Point& point : points) sums.push_back(sums.back() + point.value);
  std::vector<Point> result;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t begin = i - std::min(around, i), end = std::min(points.size(), i + around + 1);
    result.push_back(
        {points[i].step, (sums[end] - sums[begin]) / static_cast<double>(end - begin)});
  }
  return result;
}

}  // namespace

const char* const kPlotStyle =
    ".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1rem}"
    "figure{margin:0;padding:.8rem .8rem .3rem;background:var(--card);border:1px solid var(--edge);"
    "border-radius:.5rem}"
    "figcaption{display:flex;justify-content:space-between;gap:1rem;font-weight:600}"
    "figcaption span{font-weight:400;color:var(--soft);white-space:nowrap}"
    "svg{display:block;width:100%;height:auto}"
    "svg text{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}"
    "polyline{fill:none;stroke-linejoin:round}"
    ".grid{stroke:var(--edge)}.main{stroke:var(--line);stroke-width:1.8}"
    ".raw{stroke:var(--line);stroke-width:1;opacity:.35}.aside{stroke:var(--soft);opacity:.6}"
    ".dot{fill:var(--line);stroke:none}.aside.dot{fill:var(--soft)}.hit{fill:transparent}"
    ".hit:hover{fill:var(--line);fill-opacity:.35}";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '&'   ? "&amp;"
              : c == '<' ? "&lt;"
              : c == '>' ? "&gt;"
              : c == '"' ? "&quot;"
                         : std::string(1, c);
  }
  return result;
}

std::string short_number(double value) { return fmt::format("{:.4g}", value); }

std::string plot(const std::string& title, const std::vector<Line>& lines,
                 const std::string& unit) {
  const auto main =
      std::find_if(lines.begin(), lines.end(), [](const Line& line) { return !line.aside; });
  std::string caption = escaped(title);
  if (main != lines.end()) {
    const std::string name = main->name.empty() ? "" : escaped(main->name) + ": ";
    caption += fmt::format("<span>{}{}</span>", name, short_number(main->points.back().value));
  }
  Drawing drawing(lines, unit);
  drawing.axes(title);
  for (const Line& line : lines) {
    if (!line.aside) continue;
    drawing.line(line.points, "aside");
    if (line.points.size() == 1) drawing.dot(line.points[0], "aside");
  }
  for (const Line& line : lines) {
    if (line.aside) continue;
    const bool many = line.points.size() >= kSmooth;
    drawing.line(line.points, many ? "raw" : "main");
    if (many) drawing.line(smoothed(line.points, line.points.size() / 50), "main");
    drawing.dot(line.points.back(), "main");
  }
  for (const Line& line : lines) drawing.tooltips(line);
  return "<figure><figcaption>" + caption + "</figcaption>" + drawing.done() + "</figure>\n";
}

}  // namespace coupler::cli
