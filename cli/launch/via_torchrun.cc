#include <fmt/format.h>

#include "base/process.h"
#include "cli/launch/launch_modes.h"

namespace coupler::cli {

ForeignCommand torchrun_command(const LaunchPlan& plan, int max_restarts) {
  const auto torchrun = find_in_path("torchrun");
  if (torchrun.empty()) {
    fail_usage("--via torchrun: torchrun was not found in PATH", "--via",
               "install it (pip install torch), or omit --via: `coupler launch` does not need "
               "Python");
  }
  // The variables include OMP_NUM_THREADS, which torchrun would otherwise set to 1.
  ForeignCommand command{"torchrun", {torchrun}, local_variables(plan)};
  auto& words = command.arguments;
  if (plan.machines == 1) {
    words.emplace_back("--standalone");
  } else {
    words.push_back(fmt::format("--nnodes={}", plan.machines));
    words.push_back(fmt::format("--node-rank={}", plan.machine_rank));
    words.push_back(fmt::format("--master-addr={}", plan.main_address));
    words.push_back(fmt::format("--master-port={}", plan.main_port));
  }
  words.push_back(fmt::format("--nproc-per-node={}", plan.per_machine()));
  words.emplace_back("--no-python");
  if (max_restarts > 0) {
    words.push_back(fmt::format("--max-restarts={}", max_restarts));
  }
  if (!plan.log_dir.empty()) {
    words.push_back(fmt::format("--log-dir={}", plan.log_dir));
  }
  if (plan.prefix || !plan.log_dir.empty()) {
    words.emplace_back("--tee=3");  // both outputs, to file and terminal
  }
  words.push_back(plan.path);
  words.insert(words.end(), plan.arguments.begin() + 1, plan.arguments.end());
  return command;
}

}  // namespace coupler::cli
