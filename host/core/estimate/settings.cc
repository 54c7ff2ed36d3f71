#include "estimate/settings.h"

#include <coupler/error.h>
#include <coupler/presets.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "estimate/plan.h"
#include "estimate/simulate.h"
#include "groups/mesh.h"
#include "plugin/probe.h"
#include "plugin/resolve.h"
#include "sharding/pipeline_requirements.h"

namespace coupler::estimate {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

config::OptionValue value_of(const db_option& option, const std::string& folder) {
  switch (option.type) {
    case DB_OPTION_STRING:
      return option.string == std::string_view(DB_PRESET_FOLDER) ? folder : option.string;
    case DB_OPTION_I64:
      return option.i64;
    case DB_OPTION_F64:
      return option.f64;
    default:
      return option.boolean != 0;
  }
}

// Whether every option of the preset has its default value.
bool only_defaults(const DistributedBackend& table, const Setting& setting) {
  uint64_t count = 0;
  const db_option* const* const options = table.default_options(&count);
  return std::all_of(setting.options.begin(), setting.options.end(), [&](const auto& given) {
    return std::any_of(options, options + count, [&](const db_option* option) {
      return option->key == given.first && value_of(*option, "") == given.second;
    });
  });
}

Setting setting_of(const db_preset& preset, const DistributedBackend& table,
                   const std::string& folder) {
  Setting setting{.name = preset.name,
                  .use = table.name,
                  .options = {},
                  .description = preset.description,
                  .step_time = preset.step_time,
                  .replaced = {}};
  for (uint64_t i = 0; i < preset.option_count; ++i) {
    const db_option& option = *preset.options[i];
    setting.options.emplace_back(option.key, value_of(option, folder));
    setting.needs_disk |=
        option.type == DB_OPTION_STRING && option.string == std::string_view(DB_PRESET_FOLDER);
  }
  setting.is_default = only_defaults(table, setting);
  return setting;
}

// "offload" for "offload.device".
std::string table_of(const std::string& key) { return key.substr(0, key.find('.')); }

}  // namespace

std::vector<Setting> presets_of(const plugin::Plugin& plugin, const std::string& folder) {
  const DistributedBackend& table = plugin.table();
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the member is a pointer
  if (!DB_HAS(&table, DistributedBackend, get_extension) || table.get_extension == nullptr)
    return {};
  const auto* presets = static_cast<const db_presets*>(table.get_extension(DB_PRESETS));
  std::vector<Setting> settings;
  std::set<std::string> replaced;
  for (uint64_t i = 0; presets != nullptr && i < presets->preset_count; ++i) {
    settings.push_back(setting_of(*presets->presets[i], table, folder));
    for (const auto& [key, value] : settings.back().options) replaced.insert(table_of(key));
  }
  for (Setting& setting : settings) setting.replaced.assign(replaced.begin(), replaced.end());
  return settings;
}

std::vector<Setting> known_settings(const config::BackendConfig& backend,
                                    const std::string& folder) {
  std::vector<Setting> settings = {
      {.name = "replicate", .use = "auto", .options = {}, .description = {}, .replaced = {}}};
  for (const plugin::PluginReport& report :
       plugin::try_plugins(plugin::found_plugin_names(backend), backend, DB_CAP_NEEDS_BASE)) {
    if (!report.usable) continue;
    config::BackendConfig one = backend;
    one.use = report.name;
    if (one.use != backend.use) one.sha256.clear();  // the pin is for backend.use alone
    for (Setting& setting : presets_of(plugin::Plugin::load(one), folder)) {
      if (setting.step_time > 0) settings.push_back(std::move(setting));
    }
  }
  std::stable_sort(settings.begin(), settings.end(), [](const Setting& a, const Setting& b) {
    return std::tie(a.needs_disk, a.step_time) < std::tie(b.needs_disk, b.step_time);
  });
  return settings;
}

config::BackendConfig apply(const Setting& setting, const config::BackendConfig& config) {
  config::BackendConfig result = config;
  result.use = setting.use;
  result.sha256.clear();  // it pins the configured backend
  std::vector<config::PluginOption>& options = result.options[setting.use];
  const auto& replaced = setting.replaced;
  std::erase_if(options, [&](const config::PluginOption& option) {
    return std::find(replaced.begin(), replaced.end(), table_of(option.key)) != replaced.end();
  });
  for (const auto& [key, value] : setting.options) {
    options.push_back({.key = key, .value = value, .source = {}});
  }
  return result;
}

SharingRanks sharing_ranks(const Mesh& mesh) {
  return {.averaging = groups::group_size(mesh, groups::kGradients),
          .sharding = groups::group_size(mesh, groups::kShard),
          .experts = groups::group_size(mesh, groups::kExpert)};
}

namespace {

// What one of these ranks does with a model.
EstimatePlan plan_of_rank(const config::BackendConfig& config, const LoggedModel& model, int rank,
                          const SharingRanks& ranks) {
  const bool grouped = ranks.sharding > 1;
  const int sharing = grouped ? ranks.sharding : ranks.averaging;
  EstimatePlan plan{.world_size = sharing, .rank = rank, .group_rank = rank, .group_size = sharing};
  if (config.use != "auto") plan = plan_for(config, model, rank, sharing);
  if (ranks.experts > 1 && plan.can_shard) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("parallel.expert is {}, but the backend '{}' shards models itself, "
                            "experts included",
                            ranks.experts, config.use),
                {.subject = "parallel.expert",
                 .hint = "set it to 1, or use a backend that does not shard"});
  }
  if (!grouped || (plan.sharded() && plan.group_size == sharing)) return plan;
  fail_config(fmt::format("parallel.shard is {}, but the backend '{}' {}", sharing, config.use,
                          !plan.sharded()
                              ? std::string("shards no model")
                              : fmt::format("shards among groups of {} ranks", plan.group_size)),
              "parallel.shard",
              "set backend.use and its options to what shards over all ranks of a group (`coupler "
              "plugins` lists the backends), or use parallel.data for replicas");
}

// A stage keeps its parameters whole and its gradients where backward leaves them, also if several
// pipelines average them (pipeline/stage.cc).
EstimatePlan plan_of_stage(const config::BackendConfig& config,
                           const config::MemoryConfig& memory) {
  sharding::require_pipeline_transport(config.use, config.use != "auto" && shards_models(config));
  sharding::require_pipeline_optimizer(memory);
  return {};
}

}  // namespace

MemoryEstimate estimate_memory(const StepLog& log, const config::BackendConfig& config,
                               const SharingRanks& ranks,
                               const config::CommunicationConfig& communication,
                               const config::MemoryConfig& memory) {
  if (log.pipeline.stages > 0)
    return simulate(log,
                    std::vector<EstimatePlan>(log.models.size(), plan_of_stage(config, memory)));
  MemoryEstimate most;
  const int sharing = ranks.sharding > 1 ? ranks.sharding : ranks.averaging;
  // Shards are rounded up for the first ranks; the last rank may get the rest.
  for (const int rank : std::set<int>{0, sharing - 1}) {
    std::vector<EstimatePlan> plans;
    for (const LoggedModel& model : log.models) {
      plans.push_back(plan_of_rank(config, model, rank, ranks));
      plans.back().communication = communication;
      if (plans.back().sharded() || memory.offload_optimizer_device != "nvme") continue;
      plans.back().optimizer_buffers = static_cast<int>(memory.offload_optimizer_buffer_count);
      plans.back().sub_group = memory.offload_optimizer_sub_group_size;
    }
    MemoryEstimate estimate = simulate(log, plans);
    if (estimate.peak > most.peak) most = std::move(estimate);
  }
  return most;
}

std::string repeated_modules(const LoggedModel& model) {
  std::vector<uint64_t> bytes(model.modules.size());
  for (const LoggedParameter& p : model.parameters) {
    for (auto m = static_cast<int64_t>(p.module); m >= 0;
         m = model.modules[static_cast<size_t>(m)].parent) {
      bytes[static_cast<size_t>(m)] += p.bytes();
    }
  }
  struct Row {
    size_t count = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, Row> rows;  // by pattern
  for (size_t m = 0; m < model.modules.size(); ++m) {
    const std::string& name = model.modules[m].name;
    const size_t dot = name.rfind('.');
    if (!is_number(dot == std::string::npos ? name : name.substr(dot + 1))) continue;
    Row& row = rows[dot == std::string::npos ? "*" : name.substr(0, dot) + ".*"];
    ++row.count;
    row.bytes += bytes[m];
  }
  std::string best;
  uint64_t most = 0;
  for (const auto& [pattern, row] : rows) {
    if (row.count < 2 || row.bytes <= most) continue;
    best = pattern;
    most = row.bytes;
  }
  return best;
}

uint64_t memory_limit_of(const config::Config& config) {
  if (config.memory.limit.empty()) return 0;
  const auto source = config.sources.find("memory.limit");
  const std::string place = source == config.sources.end() ? "" : source->second.text;
  // A place on the command line or in the environment already names the key.
  const bool in_file = place.find(':') != std::string::npos;
  try {
    return parse_byte_size(config.memory.limit,
                           in_file ? place + ": memory.limit" : "memory.limit");
  } catch (const Error& error) {
    throw Error(ErrorCode::kConfig, error.what(), {.subject = "memory.limit"});
  }
}

}  // namespace coupler::estimate
