// The mpi backend's table: its name, options, probe and create.
#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <mutex>
#include <string>

#include "common/options.h"
#include "mpi/communicator.h"
#include "mpi/runtime.h"

namespace db::mpi {
namespace {

constexpr db_option kOptions[] = {
    i64_option(
        "all_reduce_chunk", 16 << 20,
        "Bytes of an all_reduce or reduce per MPI call; larger operations are split into pieces "
        "that fit into the caches."),
    i64_option("reduce_scatter_chunk", 1 << 20,
               "Bytes that a rank exchanges with one peer at a time in a reduce_scatter."),
    i64_option("max_elements", 1 << 30,
               "Elements per MPI call, whose counts are 32-bit: 1 to 1073741824."),
    string_option(
        "yield_when_idle", "auto",
        "Whether a rank that waits inside MPI yields its core: always, never, or auto, which "
        "yields if the machine has fewer cores than ranks, or than threads of its ranks that run "
        "collectives. Unless never, it sleeps briefly while other programs take the cores."),
};

db_status probe(const db_host*, int32_t* score, char* reason, uint64_t reason_capacity) {
  try {
    std::string text = library_version();
    const std::string mpirun = find_mpirun();
    const bool inside = launched_by_mpi();
    *score = inside ? 60 : mpirun.empty() ? 0 : 50;
    if (inside)
      text += "; this process was started by an MPI launcher";
    else if (!mpirun.empty())
      text += "; processes can be started by " + mpirun;
    else
      text +=
          ", but this process was not started by mpirun, and mpirun is not in PATH (Debian: "
          "apt install openmpi-bin)";
    copy_text(reason, reason_capacity, text.c_str());
    return DB_OK;
  } catch (const std::exception&) {
    copy_text(reason, reason_capacity, "out of memory");
    return DB_ERR_NO_MEMORY;
  }
}

Failure read_settings(const Options& options, Tuning* tuning, Yield* yield) {
  const struct {
    const char* key;
    int64_t most;
    uint64_t* target;
  } numbers[] = {{"all_reduce_chunk", INT64_MAX, &tuning->all_reduce_chunk},
                 {"reduce_scatter_chunk", INT64_MAX, &tuning->reduce_scatter_chunk},
                 {"max_elements", 1 << 30, &tuning->max_elements}};
  for (const auto& number : numbers) {
    int64_t value = 0;
    Failure failure = read_number(options, number.key, 1, number.most, &value);
    if (!failure.ok()) return failure;
    *number.target = static_cast<uint64_t>(value);
  }
  size_t word = 0;
  Failure failure = read_word(options, "yield_when_idle", {"auto", "always", "never"}, &word);
  *yield = static_cast<Yield>(word);
  return failure;
}

// The host's rank and size must equal MPI's, or data would go to the wrong ranks.
Failure check_ranks(const db_communicator_params& params) {
  int rank = -1, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == params.rank && size == params.size) return {};
  std::string text = "this process is rank " + std::to_string(params.rank) + " of " +
                     std::to_string(params.size) + " for Coupler, but rank " +
                     std::to_string(rank) + " of " + std::to_string(size) + " for MPI";
  if (!launched_by_mpi())
    text += "; it was not started by mpirun: use coupler launch, or mpirun -n " +
            std::to_string(params.size);
  else if (params.size < size)  // as a base of the ranks of one machine
    text += "; mpi connects all ranks that mpirun started: name another transport for some of them";
  else
    text += "; let mpirun set the rank: unset RANK and WORLD_SIZE";
  return Failure::invalid(text);
}

Failure make_communicator(const db_communicator_params& params, const Options& options,
                          db_communicator** result) {
  Tuning tuning;
  Yield yield = Yield::kAuto;
  Failure failure = read_settings(options, &tuning, &yield);
  if (!failure.ok()) return failure;
  // Without a launcher, MPI would start with a single rank, whatever the job's size.
  if (params.size > 1 && !launched_by_mpi())
    return Failure::invalid("rank " + std::to_string(params.rank) + " of " +
                            std::to_string(params.size) +
                            " was not started by mpirun, which the mpi backend needs: use coupler "
                            "launch, or mpirun -n " +
                            std::to_string(params.size));
  failure = start(yield, params.local_size, params.default_timeout_ns);
  if (failure.ok()) failure = check_ranks(params);
  if (!failure.ok()) return failure;
  // Two threads must not call MPI_Comm_dup on one communicator at the same time.
  static std::mutex world_mutex;
  const std::lock_guard lock(world_mutex);
  Watch watch;
  watch.set_rank(params.rank);
  watch.begin("MPI_Comm_dup of MPI_COMM_WORLD", params.default_timeout_ns);
  MPI_Comm comm = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  watch.end();
  if (code != MPI_SUCCESS) return mpi_failure(code, "MPI_Comm_dup");
  return Communicator::create(comm, tuning, params.default_timeout_ns, result);
}

db_status create(const db_communicator_params* params, db_communicator** result, db_error* error) {
  return guarded("create: ", error, [&] {
    Options options;
    Failure failure = read_params(kPointersTo<kOptions>.data(), kPointersTo<kOptions>.size(),
                                  params, result, &options);
    return failure.ok() ? make_communicator(*params, options, result) : failure;
  });
}

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "mpi",
    "0.1.0",
    "Open MPI: the fastest transport for CPU tensors on one machine, and the one clusters provide.",
    DB_CAP_SPLIT | DB_CAP_HOST_MEMORY | DB_CAP_NEEDS_MPI_LAUNCH,
    probe,
    default_options<kOptions>,
    create,
    nullptr};  // get_extension

}  // namespace
}  // namespace db::mpi

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::mpi::kBackend;
}
