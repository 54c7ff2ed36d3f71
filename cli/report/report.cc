// coupler report: writes one page with plots of what a run left in a folder.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/durable_file.h"
#include "base/units.h"
#include "cli/report/report_plot.h"
#include "cli/report/run_record.h"
#include "cli/text/command.h"

namespace coupler::cli {

// A run as one HTML page with inline SVG plots, which needs no network. Pure functions.

namespace {

constexpr const char* kStyle =
    ":root{--page:#f6f7f9;--card:#fff;--text:#1c2128;--soft:#68707c;--edge:#dfe3e8;--line:#1769aa;"
    "--mark:#fff1dc;color-scheme:light dark}"
    "@media(prefers-color-scheme:dark){:root{--page:#15181c;--card:#1d2126;--text:#dde2e8;"
    "--soft:#8d97a3;--edge:#31373f;--line:#5aa9e6;--mark:#4a3a20}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;"
    "background:var(--page);color:var(--text)}"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}"
    "p{margin:.4rem 0}.soft{color:var(--soft)}.note{color:#c0392b}"
    ".cards{display:flex;flex-wrap:wrap;gap:1rem;margin:1.2rem 0}"
    ".card{background:var(--card);border:1px solid var(--edge);border-radius:.5rem;"
    "padding:.6rem 1.1rem;min-width:8rem}"
    ".card b{display:block;font-size:1.35rem;font-weight:600}"
    "table{border-collapse:collapse;background:var(--card);border:1px solid var(--edge);"
    "border-radius:.5rem;margin:1rem 0;font-variant-numeric:tabular-nums}"
    "td,th{padding:.35rem .9rem;text-align:right;border-top:1px solid var(--edge)}"
    "tr:first-child>*{border-top:none}th{color:var(--soft);font-weight:500}"
    "td:first-child,th:first-child{text-align:left}.slow{background:var(--mark)}"
    ".percent{display:inline-block;min-width:4rem}"
    ".share{display:inline-block;width:6rem;height:.6rem;margin-right:.6rem;border-radius:.3rem;"
    "background:linear-gradient(90deg,var(--line) var(--part),var(--edge) var(--part))}";

struct Range {
  double low, high;
};

Range range_of(const std::vector<Point>& points) {
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(),
                          [](const Point& a, const Point& b) { return a.value < b.value; });
  return {low->value, high->value};
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double waiting_of(const RankProfile& rank) { return share(rank.waiting_seconds, rank.seconds()); }

double speed_of(const RankProfile& rank) {
  return share(static_cast<double>(rank.step_seconds.size()), rank.seconds());
}

uint64_t bytes_a_step(const RankProfile& rank) {
  uint64_t bytes = 0;
  for (const auto& [name, kind] : rank.communication) bytes += kind.bytes;
  return rank.step_seconds.empty() ? 0 : bytes / rank.step_seconds.size();
}

const RankProfile* slowest(const RunRecord& run) {
  // Ranks wait for each other: the one that waits least is the one the others wait for.
  const auto found = std::min_element(
      run.ranks.begin(), run.ranks.end(),
      [](const RankProfile& a, const RankProfile& b) { return waiting_of(a) < waiting_of(b); });
  return run.ranks.size() < 2 ? nullptr : &*found;
}

std::string card(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"card\"><b>{}</b><span class=\"soft\">{}</span></div>\n", value,
                     what);
}

std::string cards(const RunRecord& run) {
  std::string html;
  double last = 0;
  for (const auto& [name, points] : run.metrics) last = std::max(last, points.back().step);
  if (!run.metrics.empty()) html += card(short_number(last), "last step logged");
  if (!run.ranks.empty()) {
    double waiting = 0;
    uint64_t peak = 0;
    for (const RankProfile& rank : run.ranks) {
      waiting += waiting_of(rank) / static_cast<double>(run.ranks.size());
      peak = std::max(peak, rank.peak_memory_bytes);
    }
    html += card(fmt::format("{}", run.ranks.size()), run.ranks.size() == 1 ? "rank" : "ranks");
    html += card(short_number(speed_of(run.ranks.front())), "steps per second");
    if (run.ranks.size() > 1) html += card(fmt::format("{:.1f} %", 100 * waiting), "waiting");
    html += card(format_byte_size(peak), "peak memory per rank");
  }
  return html.empty() ? html : "<div class=\"cards\">\n" + html + "</div>\n";
}

std::string numbers(const RunRecord& run) {
  std::string html = "<h2>Metrics</h2>\n<div class=\"plots\">\n";
  for (const auto& [name, points] : run.metrics)
    html += plot(name, {{.name = "", .points = points}}, "step");
  html += "</div>\n<table><tr><th></th><th>first</th><th>last</th><th>min</th><th>max</th></tr>\n";
  for (const auto& [name, points] : run.metrics) {
    const Range range = range_of(points);
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escaped(name), short_number(points.front().value),
                        short_number(points.back().value), short_number(range.low),
                        short_number(range.high));
  }
  return html + "</table>\n";
}

std::string rank_table(const RunRecord& run) {
  std::string html =
      "<table><tr><th>rank</th><th>steps</th><th>steps per second</th><th>waiting</th>"
      "<th>moved per step</th><th>peak memory</th></tr>\n";
  const RankProfile* slow = slowest(run);
  for (const RankProfile& rank : run.ranks) {
    const double waiting = 100 * waiting_of(rank);
    html += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{}</td><td><span class=\"share\" "
        "style=\"--part:{:.1f}%\"></span><span class=\"percent\">{:.1f} "
        "%</span></td><td>{}</td><td>{}</td></tr>\n",
        &rank == slow ? " class=\"slow\"" : "", rank.rank, rank.step_seconds.size(),
        short_number(speed_of(rank)), std::min(waiting, 100.0), waiting,
        format_byte_size(bytes_a_step(rank)), format_byte_size(rank.peak_memory_bytes));
  }
  html += "</table>\n";
  if (slow != nullptr)
    html += fmt::format("<p>Rank {} waits least, so it is the one the others wait for.</p>\n",
                        slow->rank);
  return html;
}

// All ranks in one plot, the slowest in front of the rest.
std::string step_plot(const RunRecord& run) {
  const RankProfile* slow = run.ranks.size() == 1 ? &run.ranks.front() : slowest(run);
  std::vector<Line> lines;
  for (const RankProfile& rank : run.ranks) {
    if (rank.step_seconds.empty()) continue;
    Line line{.name = fmt::format("rank {}", rank.rank), .points = {}, .aside = &rank != slow};
    for (size_t i = 0; i < rank.step_seconds.size(); ++i)
      line.points.push_back({static_cast<double>(i + 1), 1000 * rank.step_seconds[i]});
    lines.push_back(std::move(line));
  }
  if (lines.empty()) return "";
  return "<div class=\"plots\">\n" + plot("milliseconds per step", lines, "recorded step") +
         "</div>\n";
}

std::string communication_table(const RankProfile& rank) {
  if (rank.communication.empty()) return "";
  std::string html = fmt::format(
      "<h2>Communication of rank {}</h2>\n<p class=\"soft\">Seconds run from the submission of an "
      "operation to its end; they may overlap with computation.</p>\n"
      "<table><tr><th></th><th>count</th><th>bytes</th><th>seconds</th><th>share of "
      "time</th></tr>\n",
      rank.rank);
  for (const auto& [name, kind] : rank.communication)
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} %</td></tr>\n",
                        escaped(name), kind.count, format_byte_size(kind.bytes),
                        short_number(kind.seconds), 100 * share(kind.seconds, rank.seconds()));
  return html + "</table>\n";
}

std::string group_table(const RankProfile& rank) {
  if (rank.groups.empty()) return "";
  std::string html =
      "<p class=\"soft\">By group of ranks, in the words of the mesh. Waiting is the part that "
      "computation does not hide.</p>\n"
      "<table><tr><th>group</th><th>count</th><th>bytes</th><th>seconds</th>"
      "<th>waiting</th></tr>\n";
  for (const auto& [name, group] : rank.groups)
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} %</td></tr>\n",
                        escaped(name), group.count, format_byte_size(group.bytes),
                        short_number(group.seconds),
                        100 * share(group.waiting_seconds, rank.seconds()));
  return html + "</table>\n";
}

std::string html_page(const RunRecord& run) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<link rel=\"icon\" href=\"data:,\"><style>{1}{2}</style></head>\n"
      "<body><h1>{0}</h1>\n",
      escaped(run.folder), kStyle, kPlotStyle);
  for (const std::string& note : run.notes)
    html += fmt::format("<p class=\"note\">{}</p>\n", escaped(note));
  html += cards(run);
  if (!run.metrics.empty()) html += numbers(run);
  if (!run.ranks.empty()) {
    html +=
        "<h2>Ranks</h2>\n<p class=\"soft\">For the recorded steps. Waiting is the time in "
        "which a rank was blocked on others.</p>\n" +
        rank_table(run) + step_plot(run) + communication_table(run.ranks.front()) +
        group_table(run.ranks.front());
  }
  return html + "</body></html>\n";
}

// The same facts in a few lines, for a terminal.
std::string summary_text(const RunRecord& run) {
  std::string text;
  for (const std::string& note : run.notes) text += "note: " + note + "\n";
  for (const auto& [name, points] : run.metrics)
    text += fmt::format("{}: {} to {} in {} values\n", name, short_number(points.front().value),
                        short_number(points.back().value), points.size());
  for (const RankProfile& rank : run.ranks)
    text += fmt::format("rank {}: {} steps per second, {:.1f} % of the time waiting, peak {}\n",
                        rank.rank, short_number(speed_of(rank)), 100 * waiting_of(rank),
                        format_byte_size(rank.peak_memory_bytes));
  if (run.ranks.empty()) return text;
  const RankProfile& first = run.ranks.front();
  for (const auto& [name, group] : first.groups)
    text += fmt::format(
        "rank {}, {}: {} operation{}, {}, {} seconds, {:.1f} % of the time waiting\n", first.rank,
        name, group.count, group.count == 1 ? "" : "s", format_byte_size(group.bytes),
        short_number(group.seconds), 100 * share(group.waiting_seconds, first.seconds()));
  return text;
}

int run_report(const Arguments& arguments) {
  const std::string folder = arguments.place(0);
  const std::string output = arguments.value("--output", folder + "/report.html");
  const RunRecord run = read_run(folder);
  replace_file(output, html_page(run));
  std::printf("%s%s\n", summary_text(run).c_str(), output.c_str());
  return 0;
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .summary = "write an HTML report with plots of a run",
          .forms = {"FOLDER"},
          .options = {{"--output FILE", "write the page to FILE (default: FOLDER/report.html)"}},
          .description = {"Writes one self-contained HTML page with plots of what a run left in "
                          "FOLDER: the metrics of the jsonl tracker, and from profiles "
                          "(profile.dir) the steps per second, the shares of waiting and "
                          "communication, the latter also for each group of the mesh, the memory, "
                          "and the rank that the others wait for. Also prints a short summary."},
          .examples = {"coupler report runs/digits"},
          .run = run_report};
}

}  // namespace coupler::cli
