#include "report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/byte_size.h"

namespace coupler::cli {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
    "color:#222}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse}td,th{padding:.25rem .8rem;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    ".plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}figcaption{font-weight:600}"
    "svg text{font-size:11px;fill:#555}.slow{background:#fff3e0}.note{color:#a33}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}"
    "td,th{border-color:#444}.slow{background:#4a3a20}svg text{fill:#aaa}}";

constexpr double kWidth = 480, kHeight = 220, kLeft = 60, kBottom = 28, kTop = 10, kRight = 12;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string number(double value) { return fmt::format("{:.4g}", value); }

struct Range {
  double low, high;
};

Range range_of(const std::vector<Point>& points, double Point::*field) {
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(),
                          [field](const Point& a, const Point& b) { return a.*field < b.*field; });
  return {*low.*field, *high.*field};
}

// What an axis shows: something, where all values are one.
Range axis_of(const std::vector<Point>& points, double Point::*field) {
  const Range range = range_of(points, field);
  if (range.low != range.high) return range;
  const double room = range.low == 0 ? 1 : std::abs(range.low) / 10;
  return {range.low - room, range.high + room};
}

// A line through the points. Of very many every k-th is drawn, the last one always.
std::string plot(const std::string& title, const std::vector<Point>& points,
                 const std::string& unit) {
  const Range x = axis_of(points, &Point::step), y = axis_of(points, &Point::value);
  const auto across = [&](double step) {
    return kLeft + (step - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  };
  const auto down = [&](double value) {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kBottom - kTop);
  };
  std::string path;
  const size_t every = std::max<size_t>(1, points.size() / 2000);
  for (size_t i = 0; i < points.size(); i += every)
    path += fmt::format("{:.1f},{:.1f} ", across(points[i].step), down(points[i].value));
  path += fmt::format("{:.1f},{:.1f}", across(points.back().step), down(points.back().value));
  std::string svg = fmt::format(
      "<figure><figcaption>{}</figcaption><svg role=\"img\" aria-label=\"{}\" width=\"{}\" "
      "height=\"{}\" viewBox=\"0 0 {} {}\">",
      escaped(title), escaped(title), kWidth, kHeight, kWidth, kHeight);
  for (int line = 0; line <= 4; ++line) {
    const double value = y.low + (y.high - y.low) * line / 4;
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#8884\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, kWidth - kRight, down(value), down(value), kLeft - 6, down(value) + 4,
        number(value));
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
      kLeft, kHeight - 8, number(x.low), kWidth - kRight, kHeight - 8,
      fmt::format("{} {}", number(x.high), unit));
  return svg + fmt::format(
                   "<polyline points=\"{}\" fill=\"none\" stroke=\"#1769aa\" "
                   "stroke-width=\"1.5\"/></svg></figure>\n",
                   path);
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

const RankProfile* slowest(const RunRecord& run) {
  // Ranks wait for each other: the one that waits least is the one the others wait for.
  const auto found = std::min_element(
      run.ranks.begin(), run.ranks.end(), [](const RankProfile& a, const RankProfile& b) {
        return share(a.waiting_seconds, a.seconds()) < share(b.waiting_seconds, b.seconds());
      });
  return run.ranks.size() < 2 ? nullptr : &*found;
}

std::string rank_table(const RunRecord& run) {
  std::string html =
      "<table><tr><th>rank</th><th>steps</th><th>steps a second</th><th>waiting</th>"
      "<th>moved a step</th><th>peak memory</th></tr>\n";
  const RankProfile* slow = slowest(run);
  for (const RankProfile& rank : run.ranks) {
    uint64_t bytes = 0;
    for (const auto& [name, kind] : rank.communication) bytes += kind.bytes;
    const auto steps = rank.step_seconds.size();
    html += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} %</td><td>{}</td><td>{}</td></tr>\n",
        &rank == slow ? " class=\"slow\"" : "", rank.rank, steps,
        number(share(static_cast<double>(steps), rank.seconds())),
        100 * share(rank.waiting_seconds, rank.seconds()),
        format_byte_size(steps == 0 ? 0 : bytes / steps), format_byte_size(rank.peak_memory_bytes));
  }
  html += "</table>\n";
  if (slow != nullptr)
    html += fmt::format("<p>Rank {} waits least: it is the one that the others wait for.</p>\n",
                        slow->rank);
  return html;
}

std::string communication_table(const RankProfile& rank) {
  std::string html = fmt::format(
      "<h2>Communication of rank {}</h2>\n<table><tr><th></th><th>count</th><th>bytes</th>"
      "<th>seconds</th><th>of the time</th></tr>\n",
      rank.rank);
  for (const auto& [name, kind] : rank.communication)
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} %</td></tr>\n",
                        escaped(name), kind.count, format_byte_size(kind.bytes),
                        number(kind.seconds), 100 * share(kind.seconds, rank.seconds()));
  return html + "</table>\n";
}

std::string step_plot(const RankProfile& rank) {
  std::vector<Point> points;
  for (size_t i = 0; i < rank.step_seconds.size(); ++i)
    points.push_back({static_cast<double>(i + 1), 1000 * rank.step_seconds[i]});
  return plot(fmt::format("milliseconds a step, rank {}", rank.rank), points, "steps");
}

}  // namespace

std::string html_page(const RunRecord& run) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"><style>{1}</style></head>\n"
      "<body><h1>{0}</h1>\n",
      escaped(run.folder), kStyle);
  for (const std::string& note : run.notes)
    html += fmt::format("<p class=\"note\">{}</p>\n", escaped(note));
  if (!run.metrics.empty()) {
    html += "<h2>Numbers</h2>\n<div class=\"plots\">\n";
    for (const auto& [name, points] : run.metrics) html += plot(name, points, "steps");
    html +=
        "</div>\n<table><tr><th></th><th>first</th><th>last</th><th>least</th><th>most</th>"
        "</tr>\n";
    for (const auto& [name, points] : run.metrics) {
      const Range range = range_of(points, &Point::value);
      html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                          escaped(name), number(points.front().value), number(points.back().value),
                          number(range.low), number(range.high));
    }
    html += "</table>\n";
  }
  if (!run.ranks.empty()) {
    html += "<h2>Ranks</h2>\n" + rank_table(run) + "<div class=\"plots\">\n";
    for (const RankProfile& rank : run.ranks)
      if (!rank.step_seconds.empty()) html += step_plot(rank);
    html += "</div>\n" + communication_table(run.ranks.front());
  }
  return html + "</body></html>\n";
}

std::string summary_text(const RunRecord& run) {
  std::string text;
  for (const std::string& note : run.notes) text += "note: " + note + "\n";
  for (const auto& [name, points] : run.metrics)
    text += fmt::format("{}: {} to {} in {} values\n", name, number(points.front().value),
                        number(points.back().value), points.size());
  for (const RankProfile& rank : run.ranks)
    text += fmt::format(
        "rank {}: {} steps a second, {:.1f} % of the time waiting, peak {}\n", rank.rank,
        number(share(static_cast<double>(rank.step_seconds.size()), rank.seconds())),
        100 * share(rank.waiting_seconds, rank.seconds()),
        format_byte_size(rank.peak_memory_bytes));
  return text;
}

}  // namespace coupler::cli
