// The ways to start a job's ranks: as our own child processes, or through another launcher, by a
// command line, a script or a manifest. mpirun.h has that through MPI. Plain data and functions;
// what runs a job is single-threaded and returns after its last process has ended.
#pragma once

#include <string>
#include <vector>

#include "cli/launch/job_end.h"
#include "cli/launch/launch_plan.h"
#include "cli/launch/rank_environment.h"

namespace coupler::cli {

// As our own child processes.
JobExit launch_local(const LaunchPlan& plan);

// Another launcher's command line that starts the ranks of a plan.
struct ForeignCommand {
  std::string launcher;                // "srun", for messages
  std::vector<std::string> arguments;  // the first is its path
  Variables added;                     // added to our own environment
};

// Runs the launcher until it has ended; its exit code becomes the job's. Signals are forwarded to
// the launcher, which decides what to pass on to the ranks.
JobExit run_foreign(const ForeignCommand& command);

// Quoted for a shell if needed: 'a b'.
std::string shell_word(const std::string& text);
std::string shell_line(const std::vector<std::string>& words);

// --via torchrun.
// Throws Error(kUsage) if torchrun is missing.
ForeignCommand torchrun_command(const LaunchPlan& plan, int max_restarts);

// --via slurm: srun inside an allocation, or an sbatch script.
// Throws Error(kUsage) outside an allocation, if srun is missing, or if the allocation is smaller
// than the plan.
ForeignCommand srun_command(const LaunchPlan& plan);

std::string sbatch_script(const LaunchPlan& plan);

// --via k8s: pods that run `coupler launch`, one for each machine.
// A JobSet or a PyTorchJob, as YAML. Throws Error(kUsage) without an image, or for a name that
// Kubernetes does not accept.
std::string kubernetes_manifest(const LaunchPlan& plan);

}  // namespace coupler::cli
