#include "run_record.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A line that is cut off, as by a full disk, is passed over and noted.
void read_metrics(const fs::path& path, RunRecord& record) {
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
      continue;  // a run's beginning
    }
    for (const auto& [name, value] : entry["values"].items()) {
      if (!value.is_number()) continue;
      const Point point = {entry["step"].get<double>(), value.get<double>()};
      if (std::isfinite(point.value)) record.metrics[name].push_back(point);
    }
  }
  if (broken > 0)
    record.notes.push_back(
        fmt::format("{}: {} of {} lines are no JSON objects", path.string(), broken, number));
}

void read_profile(const fs::path& path, RunRecord& record) {
  std::ifstream in(path);
  const json summary = json::parse(in, nullptr, /*allow_exceptions=*/false);
  try {
    RankProfile rank;
    rank.rank = summary.at("rank").get<int>();
    rank.step_seconds = summary.at("step_seconds").get<std::vector<double>>();
    rank.waiting_seconds = summary.at("waiting_seconds").get<double>();
    rank.peak_memory_bytes = summary.at("peak_memory_bytes").get<uint64_t>();
    for (const auto& [name, kind] : summary.at("communication").items())
      rank.communication[name] = {kind.at("count").get<uint64_t>(),
                                  kind.at("bytes").get<uint64_t>(),
                                  kind.at("seconds").get<double>()};
    record.ranks.push_back(std::move(rank));
  } catch (const json::exception&) {
    record.notes.push_back(
        fmt::format("{} is no whole summary: its round had not ended, or its "
                    "process was ended while it was written",
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
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename();
    const bool profile = name.rfind("profile-rank", 0) == 0 && entry->path().extension() == ".json";
    if (name == "metrics.jsonl") read_metrics(entry->path(), record);
    if (profile) read_profile(entry->path(), record);
    any = any || profile || name == "metrics.jsonl";
  }
  if (failed)
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", folder, failed.message()),
                {.subject = folder, .hint = "name the folder of a run"});
  if (!any)
    throw Error(ErrorCode::kIo,
                fmt::format("{} has neither metrics.jsonl nor profile-rank*.json", folder),
                {.subject = folder,
                 .hint = "the tracker jsonl writes the one, profile.dir has the other written"});
  for (auto& [name, points] : record.metrics)
    std::stable_sort(points.begin(), points.end(),
                     [](const Point& a, const Point& b) { return a.step < b.step; });
  std::sort(record.ranks.begin(), record.ranks.end(),
            [](const RankProfile& a, const RankProfile& b) { return a.rank < b.rank; });
  return record;
}

}  // namespace coupler::cli
