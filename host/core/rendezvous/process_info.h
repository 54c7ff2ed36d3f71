// The rank and world size of this process, from the environment that its launcher set. Pure
// functions of the given environment; no threading constraints.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace coupler::plugin {
enum class MpiLaunch;
enum class Spread;
}  // namespace coupler::plugin

namespace coupler::rendezvous {

// The first node of a list in the form of SLURM_STEP_NODELIST: gpu07 for "gpu[07-12,20],cpu1"; ""
// for an empty list.
std::string first_slurm_node(std::string_view list);

// kTorchrun stands for everything that sets its variables: torchrun itself, DeepSpeed's launcher,
// PyTorchJob, and RANK and WORLD_SIZE set by hand.
enum class LauncherKind { kNone, kCoupler, kTorchrun, kOpenMpi, kMpich, kSlurm, kKubernetes };

struct ProcessInfo {
  LauncherKind launcher = LauncherKind::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // Where the store is: the path of a job file (kCoupler; address and secret inside), or host and
  // port (MASTER_ADDR and MASTER_PORT; always set with kTorchrun and kKubernetes, and with kSlurm
  // if ranks run on several machines). Both empty: rank 0 hosts it (kOpenMpi, kMpich, kSlurm), or
  // none is needed (world 1).
  std::string job_file;
  std::string store_host;
  int store_port = 0;
  // Whether local_world_size was said. If not, all ranks are assumed to be on this machine.
  bool says_local_world = false;
};

// A variable's value; "" if it is not set.
using EnvironmentLookup = std::function<std::string(const char* name)>;

// Reads the variables of one launcher, or of none: world 1. Throws Error(kConfig), naming the
// variables and their values, if two launchers disagree (RANK=0 and OMPI_COMM_WORLD_RANK=1), a rank
// is outside the world, or a value is not a number.
ProcessInfo detect_process(const EnvironmentLookup& lookup);
ProcessInfo detect_process();  // of this process's environment

const char* launcher_name(LauncherKind kind);  // "Open MPI"; for messages

// For a process that exists: whether mpirun started it (plugin/plugin.h).
plugin::MpiLaunch mpi_launch_of(const ProcessInfo& process);
// Whether all ranks are certainly on one machine. A rank cannot know how many the others have.
plugin::Spread spread_of(const ProcessInfo& process);

}  // namespace coupler::rendezvous
