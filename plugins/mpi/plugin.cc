// The mpi backend's table: its name, options, probe and create.
#include <coupler/distributed_backend.h>
#include <mpi.h>

#include <iterator>
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
        "collectives."),
};
constexpr auto kDefaults = pointers_to(kOptions);

const db_option* const* default_options(uint64_t* count) {
  if (count != nullptr) *count = kDefaults.size();
  return kDefaults.data();
}

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

Failure read_options(const db_communicator_params& params, Tuning* tuning, Yield* yield) {
  Options options;
  Failure failure = Options::parse(kDefaults.data(), kDefaults.size(), params.options,
                                   params.option_count, &options);
  if (!failure.ok()) return failure;
  const struct {
    const char* key;
    int64_t most;
    uint64_t* target;
  } numbers[] = {{"all_reduce_chunk", INT64_MAX, &tuning->all_reduce_chunk},
                 {"reduce_scatter_chunk", INT64_MAX, &tuning->reduce_scatter_chunk},
                 {"max_elements", 1 << 30, &tuning->max_elements}};
  for (const auto& number : numbers) {
    const int64_t value = options.i64(number.key);
    if (value < 1 || value > number.most)
      return Failure::make(DB_ERR_INVALID_ARGUMENT, std::string("option '") + number.key + "' is " +
                                                        std::to_string(value) + "; valid: 1 to " +
                                                        std::to_string(number.most));
    *number.target = static_cast<uint64_t>(value);
  }
  const std::string& word = options.string("yield_when_idle");
  if (word != "auto" && word != "always" && word != "never")
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         "option 'yield_when_idle' is '" + word + "'; valid: auto, always, never");
  *yield = word == "auto" ? Yield::kAuto : word == "always" ? Yield::kAlways : Yield::kNever;
  return {};
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
  text += launched_by_mpi() ? "; let mpirun set the rank: unset RANK and WORLD_SIZE"
                            : "; it was not started by mpirun: use coupler launch, or mpirun -n " +
                                  std::to_string(params.size);
  return Failure::make(DB_ERR_INVALID_ARGUMENT, text);
}

Failure make_communicator(const db_communicator_params& params,
                          std::unique_ptr<Communicator>* result) {
  Tuning tuning;
  Yield yield = Yield::kAuto;
  Failure failure = read_options(params, &tuning, &yield);
  if (!failure.ok()) return failure;
  // Without a launcher, MPI would start with a single rank, whatever the job's size.
  if (params.size > 1 && !launched_by_mpi())
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         "rank " + std::to_string(params.rank) + " of " +
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
  if (params == nullptr || result == nullptr ||
      !DB_HAS(params, db_communicator_params, default_timeout_ns))
    return report(DB_ERR_INVALID_ARGUMENT,
                  "create: params or result is NULL, or params.struct_size is too small", error);
  *result = nullptr;
  if (params->size < 1 || params->rank < 0 || params->rank >= params->size ||
      params->default_timeout_ns <= 0)
    return report(DB_ERR_INVALID_ARGUMENT,
                  "create: rank " + std::to_string(params->rank) + " of " +
                      std::to_string(params->size) + " with a timeout of " +
                      std::to_string(params->default_timeout_ns) +
                      " ns; ranks go from 0 to size - 1, and the timeout must be positive",
                  error);
  try {
    std::unique_ptr<Communicator> made;
    const Failure failure = make_communicator(*params, &made);
    if (!failure.ok()) return report(failure, error);
    *result = made.release()->handle();
    return DB_OK;
  } catch (const std::bad_alloc&) {
    return report(DB_ERR_NO_MEMORY, "create: out of memory", error);
  } catch (const std::exception& e) {
    return report(DB_ERR_SYSTEM, std::string("create: ") + e.what(), error);
  }
}

const void* get_extension(const char*) { return nullptr; }

constexpr DistributedBackend kBackend = {
    sizeof(DistributedBackend),
    DB_ABI_MAJOR,
    DB_ABI_MINOR,
    "mpi",
    "0.1.0",
    "Open MPI: the fastest transport for CPU tensors on one machine, and the one clusters provide.",
    DB_CAP_SPLIT | DB_CAP_HOST_MEMORY | DB_CAP_NEEDS_MPI_LAUNCH,
    probe,
    default_options,
    create,
    get_extension};

}  // namespace
}  // namespace db::mpi

extern "C" DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void) {
  return &db::mpi::kBackend;
}
