#include "rendezvous/job_file.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/process.h"
#include "base/text.h"
#include "rendezvous/host_store.h"
#include "rendezvous/process_info.h"
#include "store/client.h"
#include "store/link.h"
#include "store/store.h"
#include "store/torch_store.h"

namespace coupler::rendezvous {
namespace {

constexpr std::string_view kTitle = "coupler job 2";

}  // namespace

std::optional<JobAddress> parse_job_file(std::string_view text) {
  const auto lines = split(text, '\n');
  if (lines.size() < 5 || lines[0] != kTitle || lines[1].empty()) {
    return std::nullopt;
  }
  JobAddress job;
  job.host = lines[1];
  job.tls = lines[4] == "tls";
  job.port = to_number<int>(lines[2]).value_or(-1);
  const bool is_port = store::is_local(job.host) ? job.port == 0 : job.port > 0 && job.port < 65536;
  const bool good = is_port && from_hex(lines[3], job.secret) && (lines[4] == "plain" || job.tls);
  return good ? std::optional(job) : std::nullopt;
}

std::string format_job_file(const JobAddress& job) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n", kTitle, job.host, job.port, to_hex(job.secret),
                     job.tls ? "tls" : "plain");
}

UniqueFd make_job_memory_file(const JobAddress& job) {
  UniqueFd fd(::memfd_create("coupler-job", MFD_CLOEXEC));
  // A new memory file is readable by everyone.
  if (!fd || ::fchmod(fd.get(), 0600) != 0 || !write_fully(fd.get(), format_job_file(job))) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot create the job's memory file: {}", errno_message()));
  }
  return fd;
}

JobAddress read_job_file(const std::string& path) {
  constexpr size_t kMost = 512;
  const auto text = read_private_file(
      "the job file", path, kMost,
      "it exists while the job's launcher runs: start the program with `coupler launch`");
  const auto job = parse_job_file(text);
  if (!job) {
    fail_config(fmt::format("the job file {} does not hold a job's address and secret", path), path,
                "start the program with `coupler launch` of the same version");
  }
  return *job;
}

namespace {

std::string open_mpi_job() {
  const auto job = environment_value("PMIX_NAMESPACE");
  const auto daemon = environment_value("OMPI_MCA_orte_hnp_uri");
  if (job.empty() && daemon.empty()) {
    fail_config(
        "OMPI_COMM_WORLD_RANK is set, but PMIX_NAMESPACE and OMPI_MCA_orte_hnp_uri, which identify "
        "the job, are not",
        "OMPI_COMM_WORLD_RANK",
        "start the program with Open MPI's mpirun, or unset OMPI_COMM_WORLD_RANK and "
        "OMPI_COMM_WORLD_SIZE");
  }
  return "openmpi " + job + " " + daemon;
}

// Without PMIx, MPICH gives its processes no job name. The proxy that started all processes of this
// machine identifies the job: it is an ancestor of each, even with shells in between.
std::string mpich_job() {
  long pid = ::getppid();
  while (pid > 1) {
    const ProcessStatus status = status_of(pid);
    if (status.name.compare(0, 6, "hydra_") == 0) {
      return fmt::format("mpich {}", pid);
    }
    pid = status.parent;  // 0 if there is none
  }
  fail_config("PMI_RANK is set, but no ancestor of this process is MPICH's hydra_pmi_proxy",
              "PMI_RANK", "start the program with MPICH's mpirun, or unset PMI_RANK and PMI_SIZE");
}

// Identifies one start of the workers: keys from before a restart must not be visible.
std::string torchrun_epoch() {
  return fmt::format("{}/{}", environment_value("TORCHELASTIC_RUN_ID"),
                     environment_value("TORCHELASTIC_RESTART_COUNT"));
}

// A name that all ranks of a job on one machine know, and that no other job has.
std::string job_name(const ProcessInfo& process) {
  switch (process.launcher) {
    case LauncherKind::kOpenMpi:
      return open_mpi_job();
    case LauncherKind::kMpich:
      return mpich_job();
    case LauncherKind::kTorchrun:
      return fmt::format("torchrun {}:{} {}", process.store_host, process.store_port,
                         torchrun_epoch());
    case LauncherKind::kSlurm:
      return fmt::format("slurm {}.{}", environment_value("SLURM_JOB_ID"),
                         environment_value("SLURM_STEP_ID"));
    default:
      return fmt::format("master {}:{}", process.store_host, process.store_port);
  }
}

// The store of torchrun's agent is up before the ranks are, but does not watch them. Ranks on
// several machines only learn from it where rank 0 hosts the job's store.
std::shared_ptr<store::Store> meet_at_agent(const ProcessInfo& process,
                                            const config::Config& config) {
  const auto agent =
      store::Store::with_prefix(std::make_shared<store::TorchStore>(
                                    process.store_host, process.store_port, config.backend.timeout),
                                torchrun_epoch());
  return host_or_join_through(*agent, process, config);
}

}  // namespace

std::shared_ptr<store::Store> open_job_store(const ProcessInfo& process,
                                             const config::Config& config) {
  if (process.world_size == 1) {
    return std::make_shared<store::MemoryStore>();
  }
  if (process.launcher == LauncherKind::kCoupler) {
    const JobAddress job = read_job_file(process.job_file);
    auto store = std::make_shared<store::StoreClient>(job.host, job.port, job.secret,
                                                      config.backend.timeout, job.tls);
    store->join(process.rank);
    return store;
  }
  if (process.launcher == LauncherKind::kNone) {
    throw Error(ErrorCode::kUsage,
                fmt::format("world size {} needs a launcher through which the ranks meet",
                            process.world_size),
                {.subject = "launcher", .hint = "start the program with `coupler launch`"});
  }
  if (process.local_world_size != process.world_size &&
      process.launcher == LauncherKind::kTorchrun &&
      environment_value("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    return meet_at_agent(process, config);
  }
  if (process.local_world_size != process.world_size) {
    return host_or_join_network_store(process, config);
  }
  return host_or_join_store(job_name(process), process.rank, config.backend);
}

}  // namespace coupler::rendezvous
