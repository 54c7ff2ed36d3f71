#include "mpi/runtime.h"

#include <dlfcn.h>
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <sstream>
#include <thread>

#include "mpi/collectives.h"
#include "mpi/contention.h"
#include "mpi/watchdog.h"

namespace db::mpi {
namespace {

std::mutex switch_mutex;
// From this many threads inside on, they yield; 0: always, by Open MPI's own setting.
std::atomic<int32_t> yield_threshold{INT32_MAX};
std::atomic<int32_t> inside{0};
bool (*set_yield)(bool) = nullptr;  // written once, before yield_threshold

// Under the mutex, so the last thread to switch applies the latest count.
void turn_switch() {
  const std::lock_guard lock(switch_mutex);
  set_yield(inside.load(std::memory_order_relaxed) >=
            yield_threshold.load(std::memory_order_relaxed));
}

// From now on, waiting threads yield while at least this many of this process are inside. Does
// nothing if the MPI library has no such switch (only Open MPI has one).
void yield_when_oversubscribed(int32_t threads) {
  // Open MPI reads its setting mpi_yield_when_idle only at start-up and applies it this way.
  const auto function =
      reinterpret_cast<bool (*)(bool)>(dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  if (function == nullptr) return;
  set_yield = function;
  yield_threshold.store(threads, std::memory_order_release);
}

}  // namespace

InsideMpi::InsideMpi() {
  const int32_t now = inside.fetch_add(1, std::memory_order_relaxed) + 1;
  const int32_t threshold = yield_threshold.load(std::memory_order_acquire);
  if (now == threshold) turn_switch();
  begin_polling(now >= threshold);
}

InsideMpi::~InsideMpi() {
  end_polling();
  const int32_t before = inside.fetch_sub(1, std::memory_order_relaxed);
  if (before == yield_threshold.load(std::memory_order_acquire)) turn_switch();
}

namespace {

constexpr int64_t kFinalizeTimeout = 10'000'000'000;

std::mutex start_mutex;
std::atomic<bool> up{false};

void at_exit(int status, void*) {
  if (!up.exchange(false)) return;
  // mpirun treats a process that exits without MPI_Finalize as failed. That is right after a
  // failure, when peers may wait for it; a program that caught an error and exits normally, like
  // its peers, must not count as failed. If a peer is dead, the watch ends the wait for it.
  if (status != 0 || anyone_inside()) return;
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto* const watch = new Watch;  // never deleted: the watchdog may read it until the very end
  watch->set_rank(rank);
  watch->begin("MPI_Finalize at the end of the program", kFinalizeTimeout);
  MPI_Finalize();
  watch->end();
}

// Open MPI 5 does not start without HOME, which a service or a container may lack.
void set_home() {
  if (getenv("HOME") != nullptr) return;
  std::array<char, 4096> text{};
  passwd entry{}, *user = nullptr;
  if (getpwuid_r(geteuid(), &entry, text.data(), text.size(), &user) == 0 && user != nullptr)
    setenv("HOME", user->pw_dir, 0);
}

}  // namespace

Failure start(Yield yield, int32_t local_size, int64_t timeout_ns) {
  const std::lock_guard lock(start_mutex);
  if (up) return {};
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0)
    return Failure::invalid("MPI is already finalized in this process and cannot be started again");
  int provided = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const bool told = getenv("OMPI_MCA_mpi_yield_when_idle") != nullptr;
    if (yield == Yield::kAlways || (yield == Yield::kAuto && local_size > cores)) {
      setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
      yield_threshold.store(0, std::memory_order_release);
    } else if (yield == Yield::kAuto && !told) {
      yield_when_oversubscribed(static_cast<int32_t>(cores) / std::max(local_size, 1) + 1);
    }
    set_home();
    Watch watch;
    watch.begin("MPI_Init_thread", timeout_ns);
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    watch.end();
    if (code != MPI_SUCCESS) return mpi_failure(code, "MPI_Init_thread");
    if (yield != Yield::kNever) sleep_in_mpi_when_contended();
    on_exit(at_exit, nullptr);
  } else {
    MPI_Query_thread(&provided);
  }
  if (provided < MPI_THREAD_MULTIPLE)
    return Failure::make(DB_ERR_UNSUPPORTED,
                         initialized != 0
                             ? "the program has initialized MPI without MPI_THREAD_MULTIPLE; "
                               "request it in MPI_Init_thread, or let Coupler initialize MPI"
                             : "this MPI library does not grant MPI_THREAD_MULTIPLE");
  if (const int code = make_reductions(); code != MPI_SUCCESS)
    return mpi_failure(code, "MPI_Op_create");
  up = true;
  return {};
}

bool is_up() { return up.load(std::memory_order_acquire); }

bool launched_by_mpi() {
  return getenv("OMPI_COMM_WORLD_SIZE") != nullptr || getenv("PMIX_RANK") != nullptr;
}

std::string find_mpirun() {
  const char* const path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/mpirun";
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // "Open MPI v4.1.4, package: …": the part before the first comma, without the v.
  std::string version(text, static_cast<size_t>(length));
  version.erase(std::min(version.find(','), version.size()));
  if (const size_t v = version.find(" v"); v != std::string::npos) version.erase(v + 1, 1);
  return version;
}

Failure mpi_failure(int code, const std::string& what) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  MPI_Error_string(code, text, &length);
  db_status status = DB_ERR_INTERNAL;
  if (error_class == MPI_ERR_TRUNCATE) status = DB_ERR_MISMATCH;
  if (error_class == MPI_ERR_NO_MEM) status = DB_ERR_NO_MEMORY;
  return Failure::make(status, what + " failed: " + text, DB_ERROR_COMM_DEAD, -1, error_class);
}

}  // namespace db::mpi
