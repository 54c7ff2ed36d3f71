#include "cli/report/run_record.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace coupler::cli {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankProfile::Kind, count, bytes, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankProfile::Group, count, bytes, seconds, waiting_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankProfile, rank, step_seconds, waiting_seconds,
                                   peak_memory_bytes, communication, groups)

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Metrics = std::map<std::string, std::vector<Point>>;

// Skips and notes truncated lines, as a full disk leaves them. Runs append to one file: what a
// later run logs from some step on replaces what earlier runs logged from there.
Metrics read_metrics(const fs::path& path, RunRecord& record) {
  Metrics result;
  std::set<std::string> logged;  // by the run being read
  std::ifstream in(path);
  size_t number = 0, broken = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) {
      ++broken;
      continue;
    }
    if (!entry.contains("values") || !entry["values"].is_object() || !entry.contains("step") ||
        !entry["step"].is_number()) {
      if (entry.contains("run")) logged.clear();  // a run begins here
      continue;
    }
    for (const auto& [name, value] : entry["values"].items()) {
      if (!value.is_number()) continue;
      const Point point = {entry["step"].get<double>(), value.get<double>()};
      if (!std::isfinite(point.value)) continue;
      std::vector<Point>& points = result[name];
      if (logged.insert(name).second)
        std::erase_if(points, [&](const Point& earlier) { return earlier.step >= point.step; });
      points.push_back(point);
    }
  }
  if (broken > 0)
    record.notes.push_back(
        fmt::format("{}: {} of {} lines are not JSON objects", path.string(), broken, number));
  return result;
}

void read_profile(const fs::path& path, RunRecord& record) {
  std::ifstream in(path);
  json summary = json::parse(in, nullptr, /*allow_exceptions=*/false);
  // Profiles written before groups were counted have none.
  if (summary.is_object()) summary.emplace("groups", json::object());
  try {
    record.ranks.push_back(summary.get<RankProfile>());
  } catch (const json::exception&) {
    record.notes.push_back(
        fmt::format("{} is incomplete: its round had not ended, or its process "
                    "ended while writing it",
                    path.string()));
  }
}

}  // namespace

double RankProfile::seconds() const {
  return std::accumulate(step_seconds.begin(), step_seconds.end(), 0.0);
}

RunRecord read_run(const std::string& folder) {
  RunRecord record;
  record.folder = folder;
  std::error_code failed;
  bool any = false;
  std::map<fs::path, Metrics> files;  // by the folder they are in
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename();
    const bool profile = name.rfind("profile-rank", 0) == 0 && entry->path().extension() == ".json";
    if (name == "metrics.jsonl")
      files.emplace(entry->path().parent_path(), read_metrics(entry->path(), record));
    if (profile) read_profile(entry->path(), record);
    any = any || profile || name == "metrics.jsonl";
  }
  if (failed)
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", folder, failed.message()),
                {.subject = folder, .hint = "name the folder of a run"});
  if (!any)
    throw Error(
        ErrorCode::kIo, fmt::format("{} has neither metrics.jsonl nor profile-rank*.json", folder),
        {.subject = folder,
         .hint = "the jsonl tracker writes the former, a run with profile.dir set the latter"});
  for (auto& [place, metrics] : files) {
    const std::string below = place.lexically_relative(folder).string();
    const std::string prefix = files.size() == 1 || below == "." ? "" : below + ": ";
    for (auto& [name, points] : metrics) record.metrics[prefix + name] = std::move(points);
  }
  for (auto& [name, points] : record.metrics)
    std::stable_sort(points.begin(), points.end(),
                     [](const Point& a, const Point& b) { return a.step < b.step; });
  std::sort(record.ranks.begin(), record.ranks.end(),
            [](const RankProfile& a, const RankProfile& b) { return a.rank < b.rank; });
  return record;
}

}  // namespace coupler::cli
