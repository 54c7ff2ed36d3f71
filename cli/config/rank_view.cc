#include "cli/config/rank_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace coupler::cli {
namespace {

using nlohmann::json;

// Keys that may differ between machines or ranks, because they do not change results.
bool may_differ(const std::string& key) {
  static const std::set<std::string> keys = {"backend.interface",
                                             "backend.plugin_path",
                                             "memory.limit",
                                             "profile.dir",
                                             "training.project_dir",
                                             "training.logging_dir",
                                             "memory.offload_optimizer_nvme_path"};
  return keys.count(key) != 0 || key.rfind("launch.", 0) == 0;
}

std::string value_of(const RankView& view, const std::string& key) {
  const auto found = view.settings.find(key);
  return found == view.settings.end()
             ? "not set"
             : fmt::format("{} ({})", found->second.first, found->second.second);
}

// The differences in version, backend and keys, which must be the same on all ranks.
std::vector<std::string> differences(const RankView& first, const RankView& other) {
  std::vector<std::string> result;
  const auto add = [&](const std::string& what, const std::string& here, const std::string& there) {
    result.push_back(fmt::format("{} is {}, but on rank 0 {}", what, here, there));
  };
  if (first.version != other.version) add("Coupler's version", other.version, first.version);
  if (first.backend != other.backend) add("the backend", other.backend, first.backend);
  std::set<std::string> keys;
  for (const RankView* view : {&first, &other}) {
    for (const auto& [key, unused] : view->settings) keys.insert(key);
  }
  for (const std::string& key : keys) {
    const auto ours = other.settings.find(key), theirs = first.settings.find(key);
    const bool same = ours != other.settings.end() && theirs != first.settings.end() &&
                      ours->second.first == theirs->second.first;
    if (!same && !may_differ(key)) add(key, value_of(other, key), value_of(first, key));
  }
  return result;
}

// GPUs that two or more ranks of a machine would use.
std::vector<std::string> shared_gpus(const std::vector<std::optional<RankView>>& views) {
  std::map<std::string, std::vector<size_t>> takers;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    if (views[rank] && !views[rank]->gpu.empty())
      takers[views[rank]->gpu + " of " + views[rank]->host].push_back(rank);
  }
  std::vector<std::string> result;
  for (const auto& [gpu, ranks] : takers) {
    if (ranks.size() < 2) continue;
    result.push_back(
        fmt::format("ranks {} and {} would share GPU {}: start one process per GPU on each machine",
                    ranks[0], ranks[1], gpu));
  }
  return result;
}

// "rank 3 on node1", "ranks 0, 1 on node1"; names machines only if there are several.
std::string ranks_text(const std::vector<std::optional<RankView>>& views,
                       const std::vector<size_t>& ranks) {
  if (ranks.size() == views.size()) return views.size() == 1 ? "" : "every rank: ";
  std::set<std::string> all, hosts;
  for (const auto& view : views) {
    if (view) all.insert(view->host);
  }
  constexpr size_t kNamed = 8;
  std::string names;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i < kNamed) names += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
    if (views[ranks[i]]) hosts.insert(views[ranks[i]]->host);
  }
  if (ranks.size() > kNamed) names += fmt::format(" and {} others", ranks.size() - kNamed);
  std::string machines;
  if (all.size() > 1) {
    for (const std::string& host : hosts)
      machines += fmt::format("{}{}", machines.empty() ? " on " : ", ", host);
  }
  return fmt::format("rank{} {}{}: ", ranks.size() == 1 ? "" : "s", names, machines);
}

}  // namespace

std::string to_text(const RankView& view) {
  json settings = json::object();
  for (const auto& [key, entry] : view.settings) settings[key] = {entry.first, entry.second};
  const json whole = {{"host", view.host},        {"version", view.version}, {"file", view.file},
                      {"backend", view.backend},  {"gpu", view.gpu},         {"settings", settings},
                      {"problems", view.problems}};
  // Replaces invalid UTF-8 in messages.
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

RankView rank_view_of(const std::string& text) {
  const json whole = json::parse(text);
  RankView view{.host = whole.at("host"),
                .version = whole.at("version"),
                .file = whole.at("file"),
                .backend = whole.at("backend"),
                .gpu = whole.at("gpu"),
                .settings = {},
                .problems = whole.at("problems")};
  for (const auto& [key, entry] : whole.at("settings").items())
    view.settings[key] = {entry.at(0), entry.at(1)};
  return view;
}

std::vector<std::string> join_problems(
    const std::vector<std::optional<RankView>>& views,
    const std::vector<std::vector<std::string>>& problems_by_rank) {
  std::vector<std::pair<std::string, std::vector<size_t>>> joined;
  for (size_t rank = 0; rank < problems_by_rank.size(); ++rank) {
    for (const std::string& problem : problems_by_rank[rank]) {
      auto found = std::find_if(joined.begin(), joined.end(),
                                [&](const auto& entry) { return entry.first == problem; });
      if (found == joined.end()) found = joined.insert(found, {problem, {}});
      found->second.push_back(rank);
    }
  }
  std::vector<std::string> result;
  result.reserve(joined.size());
  for (const auto& [problem, ranks] : joined) result.push_back(ranks_text(views, ranks) + problem);
  return result;
}

std::vector<std::string> compare_views(const std::vector<std::optional<RankView>>& views) {
  std::vector<std::vector<std::string>> own(views.size());
  for (size_t rank = 0; rank < views.size(); ++rank) {
    if (!views[rank]) {
      own[rank] = {"did not respond within backend.timeout"};
      continue;
    }
    own[rank] = views[rank]->problems;
    // If a rank could not load its configuration, there is nothing to compare.
    if (!own[rank].empty() || !views[0] || !views[0]->problems.empty()) continue;
    own[rank] = differences(*views[0], *views[rank]);
  }
  std::vector<std::string> result = join_problems(views, own);
  const std::vector<std::string> shared = shared_gpus(views);
  result.insert(result.end(), shared.begin(), shared.end());
  return result;
}

}  // namespace coupler::cli
