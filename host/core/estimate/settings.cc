#include "estimate/settings.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/units.h"
#include "estimate/plan.h"
#include "estimate/replay.h"

namespace coupler {
namespace {

using Options = std::vector<std::pair<std::string, OptionValue>>;

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

Options stage(int64_t number) { return {{"stage", number}}; }

Options with(Options options, const Options& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Options on_disk(const std::string& what, const std::string& folder) {
  return {{what + ".device", std::string("nvme")}, {what + ".nvme_path", folder}};
}

}  // namespace

std::vector<Setting> known_settings(const std::string& folder) {
  const std::string zero = "deepspeed_like";
  return {
      {"replicate", "gloo_cpu", {}},
      {"ZeRO stage 1", zero, stage(1)},
      {"ZeRO stage 2", zero, stage(2)},
      {"fsdp shard_grad_op", "fsdp", {{"strategy", std::string("shard_grad_op")}}},
      {"fsdp full_shard", "fsdp", {{"strategy", std::string("full_shard")}}},
      {"ZeRO stage 3", zero, stage(3)},
      {"ZeRO stage 3, optimizer on disk", zero,
       with(stage(3), on_disk("offload_optimizer", folder)), true},
      {"ZeRO stage 3, all on disk", zero,
       with(with(stage(3), on_disk("offload_optimizer", folder)), on_disk("offload_param", folder)),
       true},
      {"fsdp full_shard, all on disk", "fsdp",
       with({{"strategy", std::string("full_shard")}}, on_disk("offload", folder)), true},
  };
}

BackendConfig apply(const Setting& setting, const BackendConfig& config) {
  BackendConfig result = config;
  result.use = setting.use;
  result.sha256.clear();  // it pins the configured backend
  std::vector<PluginOption>& options = result.options[setting.use];
  std::set<std::string> decided = {"stage", "strategy", "group_size"};
  for (const auto& [key, value] : setting.options) decided.insert(key);
  std::erase_if(options, [&](const PluginOption& option) {
    return decided.count(option.key) != 0 || option.key.rfind("offload", 0) == 0;
  });
  for (const auto& [key, value] : setting.options) {
    options.push_back({.key = key, .value = value, .source = {}});
  }
  return result;
}

MemoryEstimate estimate_memory(const StepLog& log, const BackendConfig& config, int world,
                               const CommunicationConfig& communication,
                               const MemoryConfig& memory) {
  MemoryEstimate most;
  // Shards are rounded up for the first ranks; the last rank may get the rest.
  std::set<int> ranks = {0, world - 1};
  for (const int rank : ranks) {
    std::vector<EstimatePlan> plans;
    for (const LoggedModel& model : log.models) {
      plans.push_back(
          config.use == "auto"
              ? EstimatePlan{.world = world, .rank = rank, .group_rank = rank, .group_size = world}
              : plan_for(config, model, rank, world));
      plans.back().communication = communication;
      if (plans.back().sharded() || memory.offload_optimizer_device != "nvme") continue;
      plans.back().optimizer_buffers = static_cast<int>(memory.offload_optimizer_buffer_count);
      plans.back().sub_group = memory.offload_optimizer_sub_group_size;
    }
    MemoryEstimate estimate = replay(log, plans);
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

uint64_t memory_limit_of(const Config& config) {
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

}  // namespace coupler
