#include "cli/config/rank_view.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cli/launch/host_file.h"
#include "cli/machine/system_info.h"
#include "comm/raw_communicator.h"
#include "config/schema.h"
#include "config/validate.h"
#include "config/value.h"
#include "estimate/settings.h"
#include "groups/mesh.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"

namespace coupler::cli {

std::string source_of(const config::Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "" : found->second.text + ": ";
}

std::string sentence(const Error& error) {
  const std::string hint = hint_in(error.what());
  return without_hint(error.what()) + (hint.empty() ? "" : "; " + hint);
}

// What a rank can check about its configuration by itself.

namespace {

namespace fs = std::filesystem;

// The folder may be created later, so this checks its nearest existing parent.
std::string why_not_writable(const std::string& folder) {
  std::error_code unreadable;
  fs::path at = fs::absolute(folder, unreadable);
  while (!fs::exists(at, unreadable) && at.has_relative_path()) at = at.parent_path();
  if (!fs::is_directory(at, unreadable)) return fmt::format("{} is not a folder", at.string());
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("{}: {}", at.string(), errno_message());
}

class Detector {
 public:
  Detector(const rendezvous::ProcessInfo& process, const config::Config& config, RankView& view)
      : process_(process), config_(config), view_(view) {}

  void take() {
    attempt([&] { estimate::memory_limit_of(config_); });
    for (const Error& problem : config::conflicts_in(config_))
      note(source_of(config_, problem.detail().subject) + sentence(problem));
    attempt([&] { groups::mesh_of(config_, process_.world_size, process_.rank); });
    folders();
    if (process_.world_size > 1) attempt([&] { backend(); });
  }

 private:
  template <class Action>
  void attempt(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      note(sentence(error));
    }
  }
  void note(const std::string& problem) { view_.problems.push_back(problem); }

  void folder(const std::string& key, const std::string& folder) {
    if (folder.empty()) return;
    const std::string why = why_not_writable(folder);
    if (!why.empty())
      note(fmt::format("{}{} = \"{}\" is not writable: {}", source_of(config_, key), key, folder,
                       why));
  }

  void folders() {
    folder("checkpoint.dir", config_.checkpoint.dir);
    folder("profile.dir", config_.profile.dir);
    folder("memory.offload_optimizer_nvme_path", config_.memory.offload_optimizer_nvme_path);
    const auto found = config_.backend.options.find(config_.backend.use);
    if (found == config_.backend.options.end()) return;
    for (const config::PluginOption& option : found->second) {
      const auto* text = std::get_if<std::string>(&option.value);
      if (text != nullptr && option.key.ends_with("nvme_path"))
        folder(fmt::format("backend.{}.{}", found->first, option.key), *text);
    }
  }

  // Loads the backend as a training program does; the launcher has resolved "auto".
  void backend() {
    const plugin::Plugin plugin = plugin::Plugin::load(config_.backend);
    view_.backend = probed(plugin);
    const comm::PluginOptions options(plugin.table(), config_.backend);
    bases_of(plugin);
    if (plugin.can(DB_CAP_NEEDS_BASE)) return;
    if (!plugin.can(DB_CAP_HOST_MEMORY)) gpu(plugin);
  }

  void bases_of(const plugin::Plugin& wrapper) {
    config::BackendConfig backend = config_.backend;
    backend.sha256.clear();  // the hash is the wrapper's
    const char* joint = " over ";
    for (const plugin::WantedBase& wanted : plugin::wanted_bases(wrapper.table())) {
      backend.use = plugin::use_of(wanted, config_.backend, wrapper.name());
      if (backend.use == "auto") {
        backend.use = plugin::resolve_auto(
            backend, rendezvous::mpi_launch_of(process_),
            config_.training.device == "cpu" || !wrapper.can(DB_CAP_CUDA_MEMORY),
            wanted.of_machine ? plugin::Spread::kOneMachine : rendezvous::spread_of(process_));
      }
      const plugin::Plugin base = plugin::Plugin::load(backend);
      plugin::check_base(wrapper.table(), wanted, base.table());
      const comm::PluginOptions of_base(base.table(), backend);
      view_.backend += joint + probed(base);
      joint = " and ";
      bases_of(base);
      if (!base.can(DB_CAP_HOST_MEMORY)) gpu(base);
    }
  }

  std::string probed(const plugin::Plugin& plugin) {
    std::array<char, 1024> reason{};
    int32_t score = 0;
    const db_status status =
        plugin.table().probe(&plugin::host_services(), &score, reason.data(), reason.size() - 1);
    if (status != DB_OK || score <= 0)
      note(fmt::format("backend '{}' ({}) cannot be used: {}", plugin.name(), plugin.path(),
                       reason[0] != '\0' ? reason.data() : "its probe gives no reason"));
    return fmt::format("{} {}", plugin.name(), plugin.table().version);
  }

  // The transport moves only GPU memory, and each rank needs its own GPU.
  void gpu(const plugin::Plugin& transport) {
    const std::string& device = config_.training.device;
    if (device == "cpu") {
      note(
          fmt::format("{}training.device is \"cpu\", but the backend '{}' moves only GPU "
                      "memory",
                      source_of(config_, "training.device"), transport.name()));
      return;
    }
    const std::vector<std::string> visible = visible_gpus();
    if (visible.empty()) return;  // the probe's result counts
    const size_t colon = device.find(':');
    const size_t index = colon == std::string::npos
                             ? static_cast<size_t>(process_.local_rank)
                             : std::strtoul(device.c_str() + colon + 1, nullptr, 10);
    view_.gpu = visible[index % visible.size()];
  }

  const rendezvous::ProcessInfo& process_;
  const config::Config& config_;
  RankView& view_;
};

void add_settings(const config::Config& config, RankView& view) {
  for (const auto& [key, source] : config.sources) {
    if (const config::SchemaKey* known = config::find_key(key))
      view.settings[key] = {config::render(known->get(config)), source.text};
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const config::PluginOption& option : options)
      view.settings[fmt::format("backend.{}.{}", plugin, option.key)] = {
          config::render(option.value), option.source.text};
  }
}

}  // namespace

RankView detect(const rendezvous::ProcessInfo& process,
                const std::optional<config::Config>& config) {
  RankView view;
  view.host = host_name();
  view.version = fmt::format("{} (plugin ABI {}.{})", COUPLER_VERSION, DB_ABI_MAJOR, DB_ABI_MINOR);
  if (!config) return view;
  view.file = config->file;
  add_settings(*config, view);
  Detector(process, *config, view).take();
  return view;
}

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

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankView, host, version, file, backend, gpu, settings, problems)

std::string to_text(const RankView& view) {
  // Replaces invalid UTF-8 in messages.
  return json(view).dump(-1, ' ', false, json::error_handler_t::replace);
}

RankView rank_view_of(const std::string& text) { return json::parse(text).get<RankView>(); }

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
