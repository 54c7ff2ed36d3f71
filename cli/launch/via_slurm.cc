#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/process.h"
#include "cli/launch/launch_modes.h"

namespace coupler::cli {

namespace {

std::vector<std::string> srun_words(const LaunchPlan& plan, const std::string& srun) {
  std::vector<std::string> words = {srun, fmt::format("--ntasks={}", plan.processes)};
  if (plan.machines > 1) {
    words.push_back(fmt::format("--nodes={}", plan.machines));
    words.push_back(fmt::format("--ntasks-per-node={}", plan.per_machine()));
  }
  // Otherwise the remaining ranks would wait for the one that failed.
  words.emplace_back("--kill-on-bad-exit=1");
  if (plan.config.launch.threads_per_process > 0) {
    words.push_back(fmt::format("--cpus-per-task={}", plan.config.launch.threads_per_process));
  }
  if (plan.bind != Bind::kNone) {
    words.emplace_back(plan.bind == Bind::kCore ? "--cpu-bind=cores" : "--cpu-bind=ldoms");
  }
  if (plan.prefix) {
    words.emplace_back("--label");
  }
  if (!plan.log_dir.empty()) {
    words.push_back(fmt::format("--output={}/rank-%t.log", plan.log_dir));
  }
  words.push_back(plan.path);
  words.insert(words.end(), plan.arguments.begin() + 1, plan.arguments.end());
  return words;
}

}  // namespace

ForeignCommand srun_command(const LaunchPlan& plan) {
  if (std::getenv("SLURM_JOB_ID") == nullptr) {
    fail_usage("--via slurm: this is not inside a Slurm allocation (SLURM_JOB_ID is not set)",
               "--via",
               fmt::format("get one first: salloc --ntasks={0}; or write an sbatch script: "
                           "coupler launch --via slurm --print -n {0} … > job.sh",
                           plan.processes));
  }
  const auto srun = find_in_path("srun");
  if (srun.empty()) {
    fail_usage("--via slurm: srun was not found in PATH", "--via",
               "run it on a node of the cluster, with Slurm's folder in PATH");
  }
  if (const char* tasks = std::getenv("SLURM_NTASKS")) {
    const int most = parse_number(tasks, 1, 1 << 30, "SLURM_NTASKS", "number of tasks");
    if (plan.processes > most) {
      fail_usage(fmt::format("{} processes exceed the {} tasks of this allocation "
                             "(SLURM_NTASKS)",
                             plan.processes, most),
                 "-n",
                 fmt::format("start at most {}, or allocate more: salloc --ntasks={}", most,
                             plan.processes));
    }
  }
  return {"srun", srun_words(plan, srun), common_variables(plan)};
}

std::string sbatch_script(const LaunchPlan& plan) {
  const auto name =
      plan.name.empty() ? std::filesystem::path(plan.program).filename().string() : plan.name;
  std::string script = fmt::format("#!/bin/bash\n#SBATCH --job-name={}\n", shell_word(name));
  if (plan.machines > 1) {
    script += fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n", plan.machines,
                          plan.per_machine());
  } else {
    script += fmt::format("#SBATCH --ntasks={}\n", plan.processes);
  }
  if (plan.config.launch.threads_per_process > 0) {
    script += fmt::format("#SBATCH --cpus-per-task={}\n", plan.config.launch.threads_per_process);
  }
  script += "#SBATCH --output=%x-%j.out\n\n";
  for (const auto& [key, value] : common_variables(plan)) {
    if (key != "COUPLER_TERMINAL" && key != "COUPLER_RESTART_COUNT") {  // the job sets its own
      script += fmt::format("export {}={}\n", key, shell_word(value));
    }
  }
  if (!plan.log_dir.empty()) {
    script += fmt::format("mkdir -p {}\n", shell_word(plan.log_dir));
  }
  const auto srun = shell_line(srun_words(plan, "srun"));
  if (plan.max_restarts == 0) {
    return script + "exec " + srun + "\n";
  }
  return script + fmt::format(
                      "for restart in $(seq 0 {}); do\n"
                      "  export COUPLER_RESTART_COUNT=$restart\n"
                      "  {}\n"
                      "  code=$?\n"
                      "  case $code in 0 | 2 | 3) break ;; esac\n"
                      "done\n"
                      "exit $code\n",
                      plan.max_restarts, srun);
}

}  // namespace coupler::cli
