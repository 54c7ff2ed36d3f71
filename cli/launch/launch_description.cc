#include "cli/launch/launch_description.h"

#include <fmt/format.h>

#include "cli/launch/foreign_command.h"
#include "cli/launch/log_files.h"

namespace coupler::cli {
namespace {

std::string ranks_of(const LaunchPlan& plan) {
  if (plan.machines == 1) {
    return fmt::format("{}", plan.processes);
  }
  return fmt::format("{}, {} on each of {} machines", plan.processes, plan.per_machine(),
                     plan.machines);
}

std::string rank_lines(const LaunchPlan& plan) {
  std::string text;
  const auto cpus = rank_cpus(plan);
  for (int local = 0; local < plan.per_machine(); ++local) {
    const int rank = plan.first_rank() + local;
    const auto& bound = cpus[static_cast<size_t>(local)];
    std::string line = bound.empty() ? "" : fmt::format(" processors {}", format_cpu_list(bound));
    if (!plan.log_dir.empty()) {
      line += fmt::format("{} log {}", line.empty() ? "" : ",", log_path(plan.log_dir, rank));
    }
    text += line.empty() ? "" : fmt::format("rank {}:{}\n", rank, line);
  }
  return text;
}

std::string lines(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    text += fmt::format("{}={}\n", name, shell_word(value));
  }
  return text;
}

}  // namespace

std::string describe_launch(const LaunchPlan& plan, const LaunchDescription& launch) {
  std::string text =
      fmt::format("processes: {}\nbackend: {}\nstarted by: {}\n", ranks_of(plan),
                  plan.processes == 1 ? "none (one process needs none)" : plan.config.backend.use,
                  launch.started_by.empty() ? "coupler launch" : launch.started_by);
  if (plan.machines > 1 && !plan.main_address.empty()) {
    text += fmt::format("this machine: {}, rendezvous at {}:{}\n", plan.machine_rank,
                        plan.main_address, plan.main_port);
  }
  if (launch.ours) {
    text += rank_lines(plan);
  }
  return text + fmt::format("command: {}\n", shell_line(launch.command));
}

std::string describe_environment(const LaunchPlan& plan, const LaunchDescription& launch) {
  if (!launch.started_by.empty()) {
    return fmt::format("# every rank; {} adds its own variables\n{}", launch.started_by,
                       lines(launch.added));
  }
  std::string text;
  for (int local = 0; local < plan.per_machine(); ++local) {
    text += fmt::format("# rank {}{}\n", plan.first_rank() + local,
                        plan.processes > 1 && plan.machines == 1
                            ? ", plus COUPLER_JOB_FILE, which exists only while the launcher runs"
                            : "");
    text += lines(rank_variables(plan, local, ""));
  }
  return text;
}

}  // namespace coupler::cli
