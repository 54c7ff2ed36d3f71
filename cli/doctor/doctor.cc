// coupler doctor: reports what is missing or slow on this machine, and how to fix it.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/subprocess.h"
#include "base/units.h"
#include "cli/doctor/checks.h"
#include "cli/launch/leftovers.h"
#include "cli/text/command.h"
#include "cli/text/output.h"

namespace coupler::cli {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, level, what, why, fix, exit_code)

namespace {

bool is_gone(const Leftover& one) { return one.failure.empty(); }

std::string leftovers_text(const Leftovers& found) {
  std::string text;
  uint64_t bytes = 0;
  for (const Leftover& one : found) {
    const std::string name = one_line(one.path);
    if (is_gone(one)) {
      text += fmt::format("removed  {}: {}, {}\n", name, one.what, format_byte_size(one.bytes));
      bytes += one.bytes;
    } else {
      text += fmt::format("error    {}: {}, cannot be removed: {}\n{:9}fix:  rm -rf {}\n", name,
                          one.what, one.failure, "", name);
    }
  }
  const auto removed = std::count_if(found.begin(), found.end(), is_gone);
  if (found.empty()) {
    return "no leftovers of killed jobs\n";
  }
  return text + fmt::format("\n{} removed, {} of memory and disk space freed\n", removed,
                            format_byte_size(bytes));
}

std::string json_of(const Leftovers& found, int exit_code) {
  nlohmann::ordered_json leftovers = nlohmann::ordered_json::array();
  for (const Leftover& one : found) {
    leftovers.push_back({{"path", one.path},
                         {"what", one.what},
                         {"bytes", one.bytes},
                         {"removed", is_gone(one)},
                         {"failure", one.failure}});
  }
  return json_text(
      {{"coupler", COUPLER_VERSION}, {"exit_code", exit_code}, {"leftovers", leftovers}});
}

// `coupler doctor --clean`: removes and lists the leftovers of killed jobs. Prints what was
// removed, and what could not be and why. Returns 0, or 1 if anything remains.
int clean(bool json) {
  const Leftovers found = all_leftovers(Then::kRemove);
  const int exit_code = std::all_of(found.begin(), found.end(), is_gone) ? 0 : 1;
  std::fputs((json ? json_of(found, exit_code) : leftovers_text(found)).c_str(), stdout);
  return exit_code;
}

Findings check_leftovers() {
  const Leftovers found = all_leftovers(Then::kKeep);
  if (found.empty()) {
    return {{Level::kOk, "no leftovers of killed jobs"}};
  }
  const uint64_t bytes =
      std::accumulate(found.begin(), found.end(), uint64_t{0},
                      [](uint64_t sum, const Leftover& one) { return sum + one.bytes; });
  return {{Level::kNote,
           one_line(fmt::format("killed jobs left {} ({}), {} in total", found.front().path,
                                found.size() == 1 ? found.front().what
                                                  : fmt::format("and {} more", found.size() - 1),
                                format_byte_size(bytes))),
           "it takes up memory or disk space and is no longer in use", "coupler doctor --clean"}};
}

constexpr std::chrono::seconds kDeadline(30);

struct Check {
  const char* name;
  Findings (*look)(const config::Config&);
};

constexpr std::array<Check, 14> kChecks = {
    {{"LibTorch", check_torch},
     {"backends", check_backends},
     {"Open MPI", check_mpi},
     {"GPUs", check_gpus},
     {"network", check_network},
     {"processors", check_processors},
     {"memory", check_memory},
     {"shared memory", check_shared_memory},
     {"limits", check_limits},
     {"folders", check_folders},
     {"leftovers", [](const config::Config&) { return check_leftovers(); }},
     {"clock", [](const config::Config&) { return check_clock(); }},
     {"huge pages", [](const config::Config&) { return check_huge_pages(); }},
     {"frequency", [](const config::Config&) { return check_frequency(); }}}};

struct Row {
  std::string check;
  Finding finding;
};

std::string pack(const Findings& findings) {
  return nlohmann::json(findings).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The finding for a check that did not return.
Finding lost(const ChildResult& answer) {
  return {Level::kError, one_line("this check " + describe_exit(answer, kDeadline)),
          "a job may run into the same problem",
          "look for a file system or program that hangs (mount, dmesg), or run "
          "COUPLER_LOG=debug coupler doctor"};
}

std::vector<Row> examine(const config::ConfigRequest& request) {
  std::vector<Row> rows;
  config::Config config;
  try {
    config = config::load_config(request);
    rows.push_back({"configuration",
                    {Level::kOk, config.file.empty() ? "no file; defaults, environment and -o"
                                                     : one_line(config.file)}});
  } catch (const Error& error) {
    rows.push_back({"configuration",
                    finding_of(error, "no job can start; the other findings are for the defaults",
                               "fix it, then run: coupler config check")});
  }
  std::vector<std::function<std::string()>> checks;
  checks.reserve(kChecks.size());
  for (const Check& check : kChecks) {
    checks.emplace_back([&check, &config] {
      try {
        return pack(check.look(config));
      } catch (const Error& error) {
        return pack({finding_of(error, "no job with this configuration can start",
                                "fix it, then run: coupler config check")});
      }
    });
  }
  const std::vector<ChildResult> answers = run_in_children(checks, kDeadline);
  for (size_t i = 0; i < kChecks.size(); ++i) {
    const bool answered = answers[i].end == ChildResult::End::kAnswered;
    for (Finding& finding : answered ? nlohmann::json::parse(answers[i].text).get<Findings>()
                                     : Findings{lost(answers[i])}) {
      rows.push_back({kChecks[i].name, std::move(finding)});
    }
  }
  return rows;
}

// A wrong configuration comes first: it leaves the backend unknown.
int exit_code_of(const std::vector<Row>& rows) {
  for (const int code : {2, 3}) {
    for (const Row& row : rows) {
      if (row.finding.level == Level::kError && row.finding.exit_code == code) return code;
    }
  }
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.finding.level == Level::kError; })
             ? 1
             : 0;
}

std::string counted(const std::vector<Row>& rows, Level level) {
  const auto count = std::count_if(rows.begin(), rows.end(),
                                   [&](const Row& row) { return row.finding.level == level; });
  return fmt::format("{} {}{}", count, to_string(level), count == 1 ? "" : "s");
}

std::string findings_text(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    const Finding& finding = row.finding;
    text += fmt::format("{:<8} {}: {}\n", to_string(finding.level), row.check, finding.what);
    if (!finding.why.empty()) text += fmt::format("{:9}why:  {}\n", "", finding.why);
    if (!finding.fix.empty()) text += fmt::format("{:9}fix:  {}\n", "", finding.fix);
  }
  return text + fmt::format("\n{}, {}, {}\n", counted(rows, Level::kError),
                            counted(rows, Level::kWarning), counted(rows, Level::kNote));
}

std::string findings_json(const std::vector<Row>& rows) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    findings.push_back({{"check", row.check},
                        {"level", to_string(row.finding.level)},
                        {"what", row.finding.what},
                        {"why", row.finding.why},
                        {"mend", row.finding.fix}});
  }
  return json_text(
      {{"coupler", COUPLER_VERSION}, {"exit_code", exit_code_of(rows)}, {"findings", findings}});
}

int run_doctor(const Arguments& arguments) {
  if (arguments.has("--clean")) {
    if (arguments.config.file || !arguments.config.overrides.empty())
      arguments.refuse("--clean takes no configuration", "--clean",
                       "omit --config and -o, or omit --clean to check that configuration");
    return clean(arguments.has("--json"));
  }
  const std::vector<Row> rows = examine(arguments.config);
  std::fputs((arguments.has("--json") ? findings_json(rows) : findings_text(rows)).c_str(), stdout);
  return exit_code_of(rows);
}

}  // namespace

Command doctor_command() {
  return {
      .name = "doctor",
      .summary = "find what is missing or slow on this machine and how to fix it",
      .options = {{"--json", "print a JSON object instead of text"},
                  {"--clean", "remove the leftovers of killed jobs"}},
      .config = true,
      .description =
          {"Checks everything on this machine that a job needs or that slows it down: LibTorch, "
           "backends, Open MPI, GPUs, the network interface, processors and threads, memory, "
           "limits, folders, leftovers of killed jobs, the clock and kernel settings. Each finding "
           "is printed as ok, note, warning or error, with its consequence and the command that "
           "fixes it. Nothing is changed, and no other machine is contacted. A check that takes "
           "longer than 30 seconds is stopped and reported.",
           "With --clean, no checks run. Instead, files that this user's killed jobs left on this "
           "machine are removed and listed: Open MPI's files, and the sockets and job files of "
           "stores. Files that a running process uses are kept."},
      .notes = {"Exit codes: 0 no error; 2 the configuration is wrong; 3 a backend that it names "
                "cannot be used; 1 any other error, or a leftover that cannot be removed."},
      .examples = {"coupler doctor -o backend.interface=eth0 -o launch.processes=8",
                   "coupler doctor --clean"},
      .run = run_doctor};
}

}  // namespace coupler::cli
