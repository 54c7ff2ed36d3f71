#include "driver.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "launch.h"
#include "machines.h"
#include "plugin/plugin.h"
#include "temporary_folder.h"

namespace coupler::matrix {
namespace {

// Generous, because the ranks of several tests may share few cores.
constexpr auto kLimit = std::chrono::seconds(500);
constexpr auto kLongLimit = std::chrono::seconds(3600);

// One launch: its arguments and its results.
struct Trial {
  const DriverArguments& arguments;
  const DistributedBackend& plugin;
  std::string behavior, variant;
  std::vector<std::string> options;  // key=value
  LaunchResult result;
  std::vector<std::optional<std::string>> reports;  // by rank
  std::string tally;                                // operations: what rank 0 ran and rejected

  int world_size() const { return arguments.world_size; }
  int victim() const { return world_size() - 1; }
  // A backend whose runtime ends the whole job when one rank ends.
  bool runtime_ends_job() const { return (plugin.capabilities & DB_CAP_NEEDS_MPI_LAUNCH) != 0; }
};

void perform(Trial& trial) {
  const TemporaryFolder folder("coupler-matrix");
  const DriverArguments& arguments = trial.arguments;
  std::vector<std::string> settings = {"backend.use=" + arguments.plugin};
  settings.insert(settings.end(), arguments.options.begin(), arguments.options.end());
  settings.insert(settings.end(), trial.options.begin(), trial.options.end());
  std::vector<std::string> command = {arguments.launcher, "launch", "-n",
                                      std::to_string(arguments.world_size)};
  const auto add_settings = [&] {
    for (const std::string& setting : settings) {
      command.emplace_back("-o");
      command.push_back(setting);
    }
  };
  add_settings();
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"--rank-of", trial.behavior},
           {"--variant", trial.variant},
           {"--folder", folder.path().string()},
           {"--machines", arguments.machines},
           {"--cover", arguments.cover},
           {"--complete", arguments.complete ? "1" : "0"}}) {
    if (value.empty()) continue;
    command.push_back(name);
    command.push_back(value);
  }
  if (!arguments.seed.empty()) command.insert(command.end(), {"--seed", arguments.seed});
  add_settings();
  trial.result =
      launch(command, folder.path().string(), arguments.cover == "full" ? kLongLimit : kLimit);
  for (int rank = 0; rank < arguments.world_size; ++rank) {
    std::ifstream file(fmt::format("{}/rank-{}", folder.path().string(), rank));
    std::optional<std::string> report;
    if (file) report = std::string(std::istreambuf_iterator<char>(file), {});
    trial.reports.push_back(report);
  }
  std::ifstream tally(folder.path() / "tally-0");
  trial.tally = std::string(std::istreambuf_iterator<char>(tally), {});
}

// What is wrong with the trial; "" if nothing.
using Judge = std::function<std::string(const Trial&)>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string expect_code(const Trial& trial, int code) {
  if (trial.result.overdue) return "it hangs";
  return trial.result.code == code
             ? ""
             : fmt::format("exit code {}, expected {}", trial.result.code, code);
}

std::string expect_success(const Trial& trial) { return expect_code(trial, 0); }

// Every rank except `except` reported an error that begins with `start` and contains the parts. If
// the runtime ends the job, or the backend cannot free a stuck rank, printed output counts too.
std::string expect_reports(const Trial& trial, const std::string& start,
                           const std::vector<std::string>& parts, int except = -1) {
  const bool may_be_cut = (trial.plugin.capabilities & DB_CAP_ABORT) == 0;
  int found = 0;
  for (int rank = 0; rank < trial.world_size(); ++rank) {
    const auto& report = trial.reports[static_cast<size_t>(rank)];
    if (rank == except) continue;
    if (!report) {
      if (may_be_cut) continue;
      return fmt::format("rank {} reported nothing", rank);
    }
    ++found;
    if (report->rfind(start, 0) != 0) {
      return fmt::format("rank {} reported '{}', expected '{}…'", rank, *report, start);
    }
    for (const std::string& part : parts) {
      if (!contains(*report, part)) {
        return fmt::format("rank {}'s report '{}' lacks '{}'", rank, *report, part);
      }
    }
  }
  if (found > 0) return "";
  for (const std::string& part : parts) {
    if (!contains(trial.result.output, part)) return fmt::format("the output lacks '{}'", part);
  }
  return "";
}

// The victim differs from all other ranks: every error names it and one other rank.
std::string judge_mismatch(const Trial& trial) {
  std::string wrong = expect_code(trial, 4);
  if (!wrong.empty()) return wrong;
  const std::string victim = fmt::format("rank {} ", trial.victim());
  wrong = expect_reports(trial, "mismatch rank ", {victim});
  if (!wrong.empty()) return wrong;
  const auto names_another = [&](const std::string& text) {
    for (int other = 0; other < trial.victim(); ++other) {
      if (contains(text, fmt::format("rank {} ", other))) return true;
    }
    return false;
  };
  bool any_report = false;
  for (const auto& report : trial.reports) {
    if (!report) continue;
    any_report = true;
    if (!names_another(*report)) return fmt::format("'{}' names only {}", *report, victim);
  }
  if (!any_report && !names_another(trial.result.output)) return "the output names only " + victim;
  return "";
}

std::string judge_killed(const Trial& trial) {
  std::string wrong = expect_code(trial, 128 + 9);
  if (!wrong.empty()) return wrong;
  const std::string victim = fmt::format("rank {}", trial.victim());
  if (!contains(trial.result.output, victim)) return "the launcher does not name " + victim;
  if (trial.runtime_ends_job()) return "";
  return expect_reports(trial, "peer lost " + victim, {victim}, trial.victim());
}

std::string judge_absent(const Trial& trial) {
  std::string wrong = expect_code(trial, 4);
  if (!wrong.empty()) return wrong;
  const std::string victim = fmt::format("rank {}", trial.victim());
  return expect_reports(trial, "timeout " + victim, {victim}, trial.victim());
}

std::string judge_stopped(const Trial& trial) {
  std::string wrong = expect_code(trial, 4);
  if (!wrong.empty()) return wrong;
  const std::string victim = fmt::format("rank {}", trial.victim());
  return expect_reports(trial, "peer lost " + victim, {victim, "is stopped"}, trial.victim());
}

struct Step {
  std::string variant;
  std::vector<std::string> options;
  Judge judge = expect_success;
};

struct Behavior {
  std::string name;
  std::string promise;
  int smallest_world;
  std::function<std::vector<Step>(const DistributedBackend&)> steps;
};

std::vector<Step> once(const DistributedBackend&) { return {Step{}}; }

std::vector<Step> mismatch_steps(const DistributedBackend&) {
  std::vector<Step> steps;
  for (const char* variant :
       {"count", "dtype", "reduction", "operation", "barrier", "root", "message"}) {
    steps.push_back({variant, {"backend.timeout=20s"}, judge_mismatch});
  }
  return steps;
}

std::vector<Step> option_steps(const DistributedBackend& plugin) {
  const std::string table = fmt::format("backend.{}.", plugin.name);
  const auto expect_message = [](const std::string& part) {
    return [part](const Trial& trial) {
      std::string wrong = expect_code(trial, 2);
      if (!wrong.empty()) return wrong;
      return contains(trial.result.output, part) ? "" : fmt::format("the output lacks '{}'", part);
    };
  };
  std::vector<Step> steps = {
      {"unknown", {table + "no_such_option=1"}, expect_message(table + "no_such_option")}};
  uint64_t count = 0;
  const db_option* const* known = plugin.default_options(&count);
  for (uint64_t i = 0; i < count; ++i) {
    const bool text = known[i]->type == DB_OPTION_STRING;
    steps.push_back({known[i]->key,
                     {table + known[i]->key + (text ? "=7" : "=\"seven\"")},
                     expect_message(table + known[i]->key)});
  }
  return steps;
}

const std::vector<Behavior>& behaviors() {
  static const std::vector<Behavior> all = {
      {"operations", "every operation gives the reference's result", 1, once},
      {"memory", "the same in memory that the backend gives, if it does", 1, once},
      {"rounding", "half precision sums are as exact as promised", 1, once},
      {"overlap", "many operations at once", 1, once},
      {"send_recv", "messages", 2, once},
      {"split", "sub-groups", 1, once},
      {"threads", "collectives from several threads at once", 1, once},
      {"mismatch", "ranks that differ get an error naming both", 2, mismatch_steps},
      {"killed", "a killed peer is named", 2,
       [](const DistributedBackend&) {
         return std::vector<Step>{{"", {}, judge_killed}};
       }},
      {"stopped", "a stopped peer is named, or waited for until the deadline", 2,
       [](const DistributedBackend&) {
         return std::vector<Step>{
             {"watched", {"backend.timeout=20s"}, judge_stopped},
             {"unwatched", {"backend.timeout=1s", "backend.peer_timeout=0s"}, judge_absent}};
       }},
      {"deadline", "a deadline is kept", 2,
       [](const DistributedBackend&) {
         return std::vector<Step>{{"", {"backend.timeout=1s"}, judge_absent}};
       }},
      {"options", "wrong options are refused by name", 1, option_steps}};
  return all;
}

// The outcome of a behavior.
struct Finding {
  std::string behavior, promise;
  bool passed = false;
  double seconds = 0;
  std::string text;   // what was observed, or what is wrong
  std::string tally;  // of operations
};

Finding run_behavior(const DriverArguments& arguments, const DistributedBackend& plugin,
                     const Behavior& behavior) {
  Finding finding{behavior.name, behavior.promise, false, 0, {}, {}};
  const auto start = std::chrono::steady_clock::now();
  std::string wrong, note;
  for (const Step& step : behavior.steps(plugin)) {
    Trial trial{arguments, plugin, behavior.name, step.variant, step.options, {}, {}, {}};
    perform(trial);
    finding.tally += trial.tally;
    std::string text = step.judge(trial);
    if (arguments.verbose || !text.empty()) {
      std::fprintf(arguments.json ? stderr : stdout, "---- output of %s %s\n%s----\n",
                   behavior.name.c_str(), step.variant.c_str(), trial.result.output.c_str());
    }
    if (!text.empty()) {
      wrong += fmt::format("{}{}{}: {}", wrong.empty() ? "" : "; ",
                           step.variant.empty() ? "" : "variant ", step.variant, text);
    }
    if (trial.reports[0] && behavior.steps(plugin).size() == 1) note = *trial.reports[0];
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  finding.passed = wrong.empty();
  finding.seconds = seconds;
  finding.text = finding.passed ? (note.empty() ? behavior.promise : note) : wrong;
  return finding;
}

void print_line(const Finding& finding, int world_size) {
  std::printf("%s %-10s world %d %6.2f s  %s\n", finding.passed ? "PASS" : "FAIL",
              finding.behavior.c_str(), world_size, finding.seconds, finding.text.c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json cells_of(const std::string& tally) {
  auto cells = nlohmann::ordered_json::array();
  std::istringstream lines(tally);
  std::string kind, dtype, reduction;
  uint64_t run = 0, refused = 0;
  while (lines >> kind >> dtype >> reduction >> run >> refused) {
    cells.push_back({{"operation", kind},
                     {"dtype", dtype},
                     {"reduction", reduction},
                     {"run", run},
                     {"refused", refused}});
  }
  return cells;
}

void print_json(const std::vector<Finding>& findings, const std::string& plugin, int world_size,
                bool passed) {
  using Json = nlohmann::ordered_json;
  Json json = {
      {"plugin", plugin}, {"world", world_size}, {"passed", passed}, {"behaviours", Json::array()}};
  for (const Finding& finding : findings) {
    Json entry = {{"name", finding.behavior},
                  {"promise", finding.promise},
                  {"passed", finding.passed},
                  {"seconds", finding.seconds},
                  {"text", finding.text}};
    if (!finding.tally.empty()) entry["cells"] = cells_of(finding.tally);
    json["behaviours"].push_back(std::move(entry));
  }
  // Strings come from plugins: invalid UTF-8 must not end the report.
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

void require_known(const std::vector<std::string>& wanted) {
  std::string known;
  for (const Behavior& behavior : behaviors()) known += (known.empty() ? "" : ", ") + behavior.name;
  for (const std::string& name : wanted) {
    const auto& all = behaviors();
    if (std::none_of(all.begin(), all.end(), [&](const auto& it) { return it.name == name; }))
      throw Error(ErrorCode::kUsage, "unknown behaviour '" + name + "'",
                  {.subject = name, .hint = "there are " + known});
  }
}

}  // namespace

int run_driver(const DriverArguments& arguments) {
  require_known(arguments.behaviors);
  if (!arguments.machines.empty()) {
    place_on_machines(arguments.machines, {.world_size = arguments.world_size});
  }
  config::BackendConfig backend;
  backend.use = arguments.plugin;
  const plugin::Plugin plugin = plugin::Plugin::load(backend);
  int failures = 0;
  std::vector<Finding> findings;
  for (const Behavior& behavior : behaviors()) {
    const bool wanted = arguments.behaviors.empty() ||
                        std::find(arguments.behaviors.begin(), arguments.behaviors.end(),
                                  behavior.name) != arguments.behaviors.end();
    if (!wanted || arguments.world_size < behavior.smallest_world) continue;
    findings.push_back(run_behavior(arguments, plugin.table(), behavior));
    failures += findings.back().passed ? 0 : 1;
    if (!arguments.json) print_line(findings.back(), arguments.world_size);
  }
  const auto run = static_cast<int>(findings.size());
  const bool passed = failures == 0 && run > 0;  // run may be 0: some need two processes
  if (arguments.json) {
    print_json(findings, plugin.table().name, arguments.world_size, passed);
  } else {
    std::printf("%s %s, world %d: %d of %d behaviours\n", passed ? "PASS" : "FAIL",
                plugin.table().name, arguments.world_size, run - failures, run);
  }
  return passed ? 0 : 1;
}

}  // namespace coupler::matrix
