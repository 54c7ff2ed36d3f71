#include "rendezvous/launcher_env.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace coupler::rendezvous {
namespace {

// nullopt if the whole text is not a number of at least `least`.
std::optional<int> whole_number(std::string_view text, int least) {
  const auto number = to_number<int>(text);
  return number && *number >= least ? number : std::nullopt;
}

// Whether srun started this process as a task of a step. The shell of sbatch and salloc has the
// variables of the allocation, SLURM_PROCID and SLURM_NTASKS among them, but is not a task: its
// step is missing, or is one of the numbers that Slurm reserves for the batch shell (-5, formerly
// -2), the interactive shell (-6) and other helpers.
bool is_task_of_a_step(const EnvironmentLookup& lookup) {
  constexpr uint64_t kFirstReserved = 0xfffffff0;
  const auto step = to_number<uint64_t>(lookup("SLURM_STEP_ID"));
  return step && *step < kFirstReserved;
}

bool applies(const EnvironmentLookup& lookup, const LauncherRow& row) {
  if (row.kind == LauncherKind::kSlurm) {
    return is_task_of_a_step(lookup);
  }
  if (row.kind == LauncherKind::kKubernetes) {
    // Kubernetes itself sets an index but not a size: without WORLD_SIZE the pods are independent
    // of each other. With RANK, another launcher has already identified this process.
    return !lookup(row.rank).empty() && !lookup(row.world_size).empty() && lookup("RANK").empty();
  }
  return true;
}

// Slurm does not give the number of local tasks, only a list for all nodes.
std::optional<FoundVariable> slurm_local_world(const EnvironmentLookup& lookup) {
  constexpr const char* kList = "SLURM_STEP_TASKS_PER_NODE";
  const auto list = lookup(kList);
  const auto node = read_number(lookup, "SLURM_NODEID", 0);
  if (list.empty() || !node) {
    return std::nullopt;
  }
  const auto tasks = tasks_of_node(list, node->number);
  if (!tasks) {
    fail_config(fmt::format("{}={} has no entry for node {} ({})", kList, list, node->number,
                            for_message(*node)),
                kList, "start the program with srun; its variables must not be changed");
  }
  return FoundVariable{kList, list, *tasks};
}

}  // namespace

const std::vector<LauncherRow>& launcher_table() {
  using K = LauncherKind;
  static const std::vector<LauncherRow> rows = {
      {K::kCoupler, "coupler launch", "COUPLER_RANK", "COUPLER_WORLD_SIZE", "COUPLER_LOCAL_RANK",
       "COUPLER_LOCAL_WORLD_SIZE", nullptr, false},
      {K::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
       "LOCAL_SIZE", false},
      {K::kOpenMpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, false},
      {K::kMpich, "MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr,
       false},
      {K::kSlurm, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
       nullptr, true},
      {K::kKubernetes, "Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", nullptr, nullptr,
       nullptr, true},
  };
  return rows;
}

std::string for_message(const FoundVariable& found) {
  return fmt::format("{}={}", found.name, found.text);
}

std::optional<FoundVariable> read_number(const EnvironmentLookup& lookup, const char* variable,
                                         int least) {
  const std::string text = variable == nullptr ? "" : lookup(variable);
  if (text.empty()) {
    return std::nullopt;
  }
  const auto number = whole_number(text, least);
  if (!number) {
    fail_config(
        fmt::format("the environment variable {} is '{}', which is not a whole number of at "
                    "least {}",
                    variable, text, least),
        variable, fmt::format("unset {0} or let the launcher set it", variable));
  }
  return FoundVariable{variable, text, *number};
}

std::optional<LauncherClaim> read_claim(const EnvironmentLookup& lookup, const LauncherRow& row) {
  if (!applies(lookup, row)) {
    return std::nullopt;
  }
  LauncherClaim claim{&row,
                      read_number(lookup, row.rank, 0),
                      read_number(lookup, row.world_size, 1),
                      std::nullopt,
                      std::nullopt,
                      row.places_launchers};
  if (!claim.rank && !claim.world_size) {
    return std::nullopt;
  }
  claim.local_rank = read_number(lookup, row.local_rank, 0);
  claim.local_world_size = row.kind == LauncherKind::kSlurm
                               ? slurm_local_world(lookup)
                               : read_number(lookup, row.local_world_size, 1);
  if (!claim.local_world_size) {
    claim.local_world_size = read_number(lookup, row.other_local_world, 1);
  }
  // PMI variables without hydra's local ranks come from srun: --mpi=pmi2, the default on many
  // clusters.
  if (row.kind == LauncherKind::kMpich && !claim.local_rank && !lookup("SLURM_JOB_ID").empty()) {
    claim.places_launchers = true;
  }
  return claim;
}

std::optional<int> tasks_of_node(const std::string& tasks_per_node, int index) {
  for (const std::string& entry : split(tasks_per_node, ',')) {
    const size_t times = entry.find("(x");
    const auto tasks = whole_number(std::string_view(entry).substr(0, times), 1);
    std::optional<int> nodes = 1;
    if (times != std::string::npos) {
      const auto repeats = std::string_view(entry).substr(times + 2);
      nodes = repeats.ends_with(')') ? whole_number(repeats.substr(0, repeats.size() - 1), 1)
                                     : std::nullopt;
    }
    if (!tasks || !nodes) {
      return std::nullopt;
    }
    if (index < *nodes) {
      return tasks;
    }
    index -= *nodes;
  }
  return std::nullopt;
}

}  // namespace coupler::rendezvous
