// coupler config check: checks a configuration in this process and on every rank of the job that
// `coupler launch` would start.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/config/rank_view.h"
#include "cli/launch/launch_options.h"
#include "cli/process/capture_output.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "comm/communicator.h"
#include "comm/raw_communicator.h"
#include "config/config.h"
#include "config/validate.h"
#include "estimate/settings.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"
#include "plugin/resolve.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "sharding/model_description.h"
#include "store/store.h"

namespace coupler::cli {
namespace {

using Json = nlohmann::ordered_json;

// Checks the options of the named backend even if one process would not use it: several may.
void check_options(const config::Config& config) {
  const std::string& use = config.backend.use;
  if (use == "auto" || use == "single") return;
  std::optional<plugin::Plugin> plugin;
  try {
    plugin = plugin::Plugin::load(config.backend);
  } catch (const Error&) {
    return;  // one process needs none; `coupler plugins` reports why it cannot be used
  }
  const comm::PluginOptions options(plugin->table(), config.backend);
}

void check_here(const config::Config& config) {
  estimate::memory_limit_of(config);  // throws if the size is invalid
  for (const Error& problem : config::conflicts_in(config)) {
    const std::string& key = problem.detail().subject;
    throw Error(problem.code(), source_of(config, key) + problem.what(), {.subject = key});
  }
  check_options(config);
}

void print_valid(const config::Config& config, bool as_json) {
  if (as_json) {
    std::fputs(json_text({{"right", true}, {"file", config.file}, {"processes", 1}}).c_str(),
               stdout);
    return;
  }
  std::printf("The configuration is valid; %s.\n",
              config.file.empty() ? "no file was read" : (config.file + " was read").c_str());
}

// Launches this program as the ranks, with the given options of `coupler launch`.
int check_ranks(const Arguments& arguments) {
  std::vector<std::string> words = arguments.handed_on;
  if (arguments.config.file) words.insert(words.end(), {"--config", *arguments.config.file});
  for (const std::string& setting : arguments.config.overrides)
    words.insert(words.end(), {"-o", setting});
  words.insert(words.end(), {own_program(), "config", "check-rank"});
  if (arguments.has("--json")) words.emplace_back("--json");
  return run_command(launch_command(), "launch", words);
}

int check(const Arguments& arguments) {
  const bool ranks = arguments.has("--ranks"), file_only = arguments.has("--no-ranks");
  const bool launches = !arguments.handed_on.empty();  // has options of `coupler launch`
  if (file_only && (ranks || launches))
    arguments.refuse("--no-ranks works only with --config and -o", "--no-ranks");
  const config::Config config = config::load_config(arguments.config);
  check_here(config);
  if (!file_only && (ranks || launches || config.launch.processes != 1))
    return check_ranks(arguments);
  print_valid(config, arguments.has("--json"));
  return 0;
}

// With --json, prints an object: "right", with "file", "processes", "machines" and "backend" if the
// configuration is valid, else with "problems".
int run_config_check(const Arguments& arguments) {
  try {
    return check(arguments);
  } catch (const Error& error) {
    // Print the verdict, and still report the error as usual.
    if (arguments.has("--json")) {
      const Json problems = Json::array({error.what()});
      std::fputs(json_text({{"right", false}, {"problems", problems}}).c_str(), stdout);
    }
    throw;
  }
}

constexpr size_t kLongestWho = 40;  // "rank 1023 of 1024"

using Views = std::vector<std::optional<RankView>>;

// Prefixes a backend's message about one of its options with "train.toml:7:1: ", as backends do not
// know the file.
std::string placed(std::string message, const config::Config& config) {
  // The list names the ranks, and messages without a rank can be joined if equal.
  constexpr std::string_view kWho = " cannot create its communicator: ";
  if (const size_t at = message.find(kWho); message.starts_with("rank ") && at < kLongestWho)
    message.erase(0, at + kWho.size());
  for (const auto& [plugin, options] : config.backend.options) {
    for (const config::PluginOption& option : options) {
      if (message.find(fmt::format("'{}'", option.key)) != std::string::npos)
        return fmt::format("{}: backend.{}.{}: {}", option.source.text, plugin, option.key,
                           message);
    }
  }
  return message;
}

// Whether the backend shards a model of one layer.
bool divides(const comm::Communicator& communicator) {
  if (!communicator.can_shard()) return false;
  const std::string root, type = "torch::nn::LinearImpl", weight = "weight";
  sharding::ModelDescription layer;
  layer.add_module(root, type, -1);
  layer.add_parameter(weight, 0, {64, 64}, DB_F32, true);
  bool result = false;
  try {
    communicator.plan_shards(layer.model(),
                             [&](const db_plan& plan) { result = plan.unit_count > 0; });
  } catch (const Error&) {
    return true;  // its options name modules that a model of one layer lacks
  }
  return result;
}

class RankCheck {
 public:
  RankCheck(const rendezvous::ProcessInfo& process, std::optional<config::Config> config,
            const std::string& failure, bool as_json)
      : process_(process),
        as_json_(as_json),
        config_(std::move(config)),
        job_(rendezvous::open_job_store(process_, config_.value_or(config::Config()))),
        store_(store::Store::with_prefix(job_, "config-check")),
        patience_(config_.value_or(config::Config()).backend.timeout) {
    view_ = detect(process_, config_);
    if (!failure.empty()) view_.problems.push_back(failure);
  }

  int run() {
    const auto texts = share("view", to_text(view_), patience_);
    Views views;
    for (const auto& text : texts)
      views.push_back(text ? std::optional(rank_view_of(*text)) : std::nullopt);
    std::vector<std::string> problems;
    if (process_.rank == 0) problems = compare_views(views);
    if (!agree("looked", problems.empty())) return print_invalid(problems);

    // Slightly longer than any other rank may take to give up.
    const auto said = share("connected", connect(), 2 * patience_ + std::chrono::seconds(5));
    std::vector<std::vector<std::string>> by_rank(said.size());
    for (size_t rank = 0; rank < said.size(); ++rank) {
      if (!said[rank]) by_rank[rank] = {"did not respond after the backend was to connect"};
      if (said[rank] && !said[rank]->empty()) by_rank[rank] = {*said[rank]};
    }
    if (process_.rank == 0) problems = join_problems(views, by_rank);
    if (!agree("end", problems.empty())) return print_invalid(problems);
    if (process_.rank == 0) print_valid(views);
    return 0;
  }

 private:
  // Shares a string; returns those of all ranks on rank 0, nothing on others.
  std::vector<std::optional<std::string>> share(const std::string& what, const std::string& mine,
                                                std::chrono::nanoseconds patience) {
    store_->set(fmt::format("{}/{}", what, process_.rank), mine);
    if (process_.rank != 0) return {};
    return store_->get_ranks(what, process_.world_size, patience);
  }

  // Distributes rank 0's verdict to all ranks.
  bool agree(const std::string& what, bool right) {
    if (process_.rank == 0) store_->set(what, right ? "right" : "wrong");
    return store_->get(what, 4 * patience_ + std::chrono::seconds(10)) == "right";
  }

  // Creates the backend's communicator over all ranks, which reads the values of its options.
  // Returns "" or what went wrong.
  std::string connect() {
    if (process_.world_size == 1) return {};
    try {
      config::BackendConfig backend = config_->backend;
      const plugin::Plugin plugin = plugin::Plugin::load(backend);
      if (moves_devices_only(plugin, backend) && !stands_on_host_memory(plugin, backend)) return {};
      const auto communicator = comm::Communicator::create({.plugin = plugin,
                                                            .process = process_,
                                                            .store = job_,
                                                            .backend = &backend,
                                                            .name = "config-check"});
      if (!divides(*communicator)) return {};
      std::string problems;
      for (const Error& problem :
           config::sharding_conflicts(plugin.name(), config_->memory, config_->communication)) {
        problems += (problems.empty() ? "" : "\n    ") +
                    source_of(*config_, problem.detail().subject) + sentence(problem);
      }
      return problems;
    } catch (const Error& error) {
      return placed(error.what(), *config_);
    }
  }

  bool moves_devices_only(const plugin::Plugin& plugin,
                          const config::BackendConfig& backend) const {
    if (!plugin.can(DB_CAP_HOST_MEMORY)) return true;
    const std::vector<plugin::WantedBase> bases = plugin::wanted_bases(plugin.table());
    return std::any_of(bases.begin(), bases.end(), [&](const plugin::WantedBase& base) {
      config::BackendConfig below = backend;
      below.use = plugin::use_of(base, backend, plugin.name());
      below.sha256.clear();
      // The launcher has resolved "auto"; under another launcher, host memory works as well.
      if (below.use == "auto") return false;
      const plugin::Plugin loaded = plugin::Plugin::load(below);
      plugin::check_base(plugin.table(), base, loaded.table());
      return moves_devices_only(loaded, below);
    });
  }

  // Switches a wrapper to a transport for host memory if there is one: its options can be checked
  // over any.
  static bool stands_on_host_memory(const plugin::Plugin& plugin, config::BackendConfig& backend) {
    if (!plugin.can(DB_CAP_NEEDS_BASE)) return false;
    std::string base;
    try {
      base = plugin::resolve_auto(backend, plugin::MpiLaunch::kTooLate, /*on_host=*/true);
    } catch (const Error&) {
      return false;
    }
    auto& options = backend.options[plugin.name()];
    for (const plugin::WantedBase& wanted : plugin::wanted_bases(plugin.table())) {
      std::erase_if(
          options, [&](const config::PluginOption& option) { return option.key == wanted.option; });
      options.push_back({wanted.option, base, {}});
    }
    return true;
  }

  int print_invalid(const std::vector<std::string>& problems) const {
    if (process_.rank != 0) return 0;  // one message is enough
    // The result goes to standard output, as the launcher repeats the last lines of errors.
    const int code = Error(ErrorCode::kConfig, "").exit_code();
    if (as_json_) {
      print({{"right", false}, {"processes", process_.world_size}, {"problems", problems}});
      return code;
    }
    std::printf("The configuration is invalid for %d process%s:\n", process_.world_size,
                process_.world_size == 1 ? "" : "es");
    for (const std::string& problem : problems) std::printf("  %s\n", problem.c_str());
    std::puts("`coupler config --explain` shows where each value comes from.");
    return code;
  }

  void print_valid(const Views& views) const {
    std::vector<std::pair<std::string, int>> machines;  // in the order of ranks
    for (const auto& view : views) {
      const auto found = std::find_if(machines.begin(), machines.end(), [&](const auto& machine) {
        return machine.first == view->host;
      });
      if (found == machines.end()) {
        machines.emplace_back(view->host, 1);
      } else {
        ++found->second;
      }
    }
    const RankView& first = *views[0];
    if (as_json_) {
      Json all = {{"right", true}, {"file", first.file}, {"processes", process_.world_size}};
      if (!first.backend.empty()) all["backend"] = first.backend;
      for (const auto& [host, count] : machines)
        all["machines"].push_back({{"host", host}, {"processes", count}});
      return print(all);
    }
    for (const auto& [host, count] : machines)
      std::printf("%s: %d of %d processes\n", host.c_str(), count, process_.world_size);
    if (!first.backend.empty()) std::printf("backend: %s\n", first.backend.c_str());
    std::printf("The configuration is valid on every rank; %s.\n",
                first.file.empty() ? "no file was read" : (first.file + " was read").c_str());
  }

  static void print(const Json& verdict) { std::fputs(json_text(verdict).c_str(), stdout); }

  const rendezvous::ProcessInfo process_;
  const bool as_json_;
  const std::optional<config::Config> config_;
  const std::shared_ptr<store::Store> job_, store_;
  const std::chrono::nanoseconds patience_;
  RankView view_;
};

// Runs as each rank that `check` starts: inspects the rank's view, compares it with the others
// through the job's store, and creates the backend's communicator. Rank 0 prints the result.
int run_config_rank(const Arguments& arguments) {
  const rendezvous::ProcessInfo process = rendezvous::detect_process();
  std::optional<config::Config> config;
  std::string failure;
  try {
    config = config::load_config({});
  } catch (const Error& error) {
    failure = error.what();
  }
  return RankCheck(process, std::move(config), failure, !arguments.program.empty()).run();
}

}  // namespace

Command config_check_command() {
  return {.name = "check",
          .summary =
              "check the configuration here and on every rank that `coupler launch` would "
              "start with the same options. Each rank loads and probes the backend and "
              "checks its folders; all ranks compare version, backend and keys, and "
              "connect. No program is needed. `coupler test` also tests devices and "
              "training",
          .options = {{"--json", "print JSON"},
                      {"--ranks",
                       "start ranks even if launch.processes is 1 and no option requests more"},
                      {"--no-ranks", "check here only, without starting ranks"}},
          .config = true,
          .hands_on = launch_command,
          .run = run_config_check};
}

Command config_rank_command() {
  return {.name = "check-rank", .summary = "", .run = run_config_rank};
}

}  // namespace coupler::cli
