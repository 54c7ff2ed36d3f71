#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "rendezvous/hosted_store.h"
#include "rendezvous/job_file.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store.h"
#include "rendezvous/store_client.h"
#include "rendezvous/torch_store.h"

namespace coupler {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void require_one_machine(const ProcessInfo& process, const char* launcher) {
  if (process.local_world != process.world) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} started {} of {} ranks on this machine; without `coupler launch` "
                            "or torchrun's agent the ranks must all run on one",
                            launcher, process.local_world, process.world),
                {.subject = launcher, .hint = "start the job with torchrun, or on one machine"});
  }
}

std::shared_ptr<Store> join_torchrun(const ProcessInfo& process, std::chrono::nanoseconds timeout) {
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    auto store = std::make_shared<TorchStore>(process.store_host, process.store_port, timeout);
    // The agent's store outlives a restart of the workers: keys of the old ones must not be seen.
    return Store::with_prefix(std::move(store),
                              fmt::format("{}/{}", variable("TORCHELASTIC_RUN_ID"),
                                          variable("TORCHELASTIC_RESTART_COUNT")));
  }
  // RANK and MASTER_PORT were set by hand or by a launcher that leaves the store to rank 0.
  require_one_machine(process, "the launcher");
  return host_or_join_store(fmt::format("master {}:{}", process.store_host, process.store_port),
                            process.rank, timeout);
}

std::shared_ptr<Store> join_open_mpi(const ProcessInfo& process, std::chrono::nanoseconds timeout) {
  require_one_machine(process, "mpirun");
  const auto job = variable("PMIX_NAMESPACE");
  const auto daemon = variable("OMPI_MCA_orte_hnp_uri");
  if (job.empty() && daemon.empty()) {
    throw Error(ErrorCode::kConfig,
                "OMPI_COMM_WORLD_RANK is set, but neither PMIX_NAMESPACE nor "
                "OMPI_MCA_orte_hnp_uri, which name the job",
                {.subject = "OMPI_COMM_WORLD_RANK",
                 .hint = "start the program with Open MPI's mpirun, or unset "
                         "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"});
  }
  return host_or_join_store("openmpi " + job + " " + daemon, process.rank, timeout);
}

// Without PMIx MPICH tells its processes no name of their job: it is named by the proxy that
// started all those of this machine, which is an ancestor of each, whatever shells are between.
std::string mpich_job() {
  long pid = ::getppid();
  while (pid > 1) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto begin = text.find('(');
    const auto end = text.rfind(')');
    if (begin == std::string::npos || end == std::string::npos) {
      break;
    }
    if (text.compare(begin + 1, 6, "hydra_") == 0) {
      return fmt::format("mpich {}", pid);
    }
    std::string state;
    if (!(std::istringstream(text.substr(end + 1)) >> state >> pid)) {
      break;
    }
  }
  throw Error(ErrorCode::kConfig,
              "PMI_RANK is set, but no process above this one is MPICH's (hydra_pmi_proxy)",
              {.subject = "PMI_RANK",
               .hint = "start the program with MPICH's mpirun, or unset PMI_RANK and PMI_SIZE"});
}

}  // namespace

std::shared_ptr<Store> join_store(const ProcessInfo& process, std::chrono::nanoseconds timeout) {
  if (process.world == 1) {
    return std::make_shared<MemoryStore>();
  }
  switch (process.launcher) {
    case LauncherKind::kCoupler: {
      const JobAddress job = read_job_file(process.job_file);
      return std::make_shared<StoreClient>(job.host, job.port, job.secret, timeout, job.tls);
    }
    case LauncherKind::kTorchrun:
      return join_torchrun(process, timeout);
    case LauncherKind::kOpenMpi:
      return join_open_mpi(process, timeout);
    case LauncherKind::kMpich:
      require_one_machine(process, "mpirun");
      return host_or_join_store(mpich_job(), process.rank, timeout);
    case LauncherKind::kSlurm:
      require_one_machine(process, "srun");
      return host_or_join_store(
          fmt::format("slurm {}.{}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID")),
          process.rank, timeout);
    case LauncherKind::kKubernetes:
      require_one_machine(process, "Kubernetes");
      return host_or_join_store(fmt::format("master {}:{}", process.store_host, process.store_port),
                                process.rank, timeout);
    case LauncherKind::kNone:
      break;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("a world of {} needs a launcher to meet through", process.world),
              {.subject = "launcher", .hint = "start the program with `coupler launch`"});
}

}  // namespace coupler
