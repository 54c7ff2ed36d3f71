// What a rank can check about its configuration by itself.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/config/config_check.h"
#include "cli/config/config_questions.h"
#include "cli/config/rank_view.h"
#include "comm/raw_communicator.h"
#include "config/schema.h"
#include "config/validate.h"
#include "config/value.h"
#include "estimate/settings.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// The folder may be created later, so this checks its nearest existing parent.
std::string why_not_writable(const std::string& folder) {
  std::error_code unreadable;
  fs::path at = fs::absolute(folder, unreadable);
  while (!fs::exists(at, unreadable) && at.has_relative_path()) at = at.parent_path();
  if (!fs::is_directory(at, unreadable)) return fmt::format("{} is not a folder", at.string());
  if (::access(at.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("{}: {}", at.string(), std::strerror(errno));
}

class Look {
 public:
  Look(const ProcessInfo& process, const Config& config, RankView& view)
      : process_(process), config_(config), view_(view) {}

  void take() {
    attempt([&] { memory_limit_of(config_); });
    for (const Error& problem : contradictions_of(config_))
      note(source_of(config_, problem.detail().subject) + sentence(problem));
    folders();
    if (process_.world > 1) attempt([&] { backend(); });
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
    for (const PluginOption& option : found->second) {
      const auto* text = std::get_if<std::string>(&option.value);
      if (text != nullptr && option.key.ends_with("nvme_path"))
        folder(fmt::format("backend.{}.{}", found->first, option.key), *text);
    }
  }

  // Loads the backend as a training program does; the launcher has resolved "auto".
  void backend() {
    BackendConfig backend = config_.backend;
    const Plugin plugin = Plugin::load(backend);
    const bool wraps = (plugin.table().capabilities & DB_CAP_NEEDS_BASE) != 0;
    const PluginOptions options(plugin.table(), backend, wraps ? "base" : "");
    view_.backend = probed(plugin);
    Plugin transport = plugin;
    if (wraps) {
      backend.use = base_option(plugin.name(), backend);
      if (backend.use.empty() || backend.use == "auto") {
        backend.use =
            resolve_auto(backend, mpi_launch_of(process_), config_.training.device == "cpu");
      }
      backend.sha256.clear();  // the hash is the wrapper's
      transport = Plugin::load(backend);
      const PluginOptions of_base(transport.table(), backend);
      view_.backend += " over " + probed(transport);
    }
    if ((transport.table().capabilities & DB_CAP_HOST_MEMORY) == 0) gpu(transport);
  }

  std::string probed(const Plugin& plugin) {
    std::array<char, 1024> reason{};
    int32_t score = 0;
    const db_status status =
        plugin.table().probe(&probe_host(), &score, reason.data(), reason.size() - 1);
    if (status != DB_OK || score <= 0)
      note(fmt::format("backend '{}' ({}) cannot be used: {}", plugin.name(), plugin.path(),
                       reason[0] != '\0' ? reason.data() : "its probe gives no reason"));
    return fmt::format("{} {}", plugin.name(), plugin.table().version);
  }

  // The transport moves only GPU memory, and each rank needs its own GPU.
  void gpu(const Plugin& transport) {
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

  const ProcessInfo& process_;
  const Config& config_;
  RankView& view_;
};

void add_settings(const Config& config, RankView& view) {
  for (const auto& [key, source] : config.sources) {
    if (const SchemaKey* known = find_key(key))
      view.settings[key] = {render(known->get(config)), source.text};
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const PluginOption& option : options)
      view.settings[fmt::format("backend.{}.{}", plugin, option.key)] = {render(option.value),
                                                                         option.source.text};
  }
}

}  // namespace

RankView look_around(const ProcessInfo& process, const std::optional<Config>& config) {
  RankView view;
  view.host = host_name();
  view.version = fmt::format("{} (plugin ABI {}.{})", COUPLER_VERSION, DB_ABI_MAJOR, DB_ABI_MINOR);
  if (!config) return view;
  view.file = config->file;
  add_settings(*config, view);
  Look(process, *config, view).take();
  return view;
}

}  // namespace coupler::cli
