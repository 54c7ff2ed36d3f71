// Who am I: rank and world of this process, read from the environment of whoever started it.
// Pure functions over a given environment; no thread rule.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace coupler {

// kTorchrun stands for all that speak its language: torchrun itself, deepspeed's launcher,
// PyTorchJob, and RANK and WORLD_SIZE set by hand.
enum class LauncherKind { kNone, kCoupler, kTorchrun, kOpenMpi, kMpich, kSlurm, kKubernetes };

struct ProcessInfo {
  LauncherKind launcher = LauncherKind::kNone;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;
  // Where the store is: a path of a job file (kCoupler: address and secret inside), or host and
  // port (MASTER_ADDR and MASTER_PORT; always there with kTorchrun and kKubernetes, and, where
  // ranks run on several machines, with kSlurm). Both empty: rank 0 hosts it (kOpenMpi, kMpich,
  // kSlurm), or none is needed (world 1).
  std::string job_file;
  std::string store_host;
  int store_port = 0;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string&)>;

// The variables of one launcher, or of none: world 1. Two launchers that disagree (RANK=0 and
// OMPI_COMM_WORLD_RANK=1), a rank outside the world, or a text that is no number: Error(kConfig)
// naming the variables and their values.
ProcessInfo detect_process(const EnvironmentLookup& lookup);
ProcessInfo detect_process();  // of this process's environment

const char* launcher_name(LauncherKind kind);  // "Open MPI"; for messages

}  // namespace coupler
