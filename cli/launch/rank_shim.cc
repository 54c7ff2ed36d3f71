// `coupler rank-shim -- path program args…`: what mpirun starts as a rank. It starts the program as
// its child, gives it Coupler's rank variables, remembers its last lines and reports its end to the
// launcher through the store, since mpirun's own end says little about it. The program ends with
// the shim, the shim with mpirun (parent-death signal) or with the launcher (the store's
// connection). What mpirun and the ranks leave in the job's folder is removed by the guard of the
// shim that ends last, where nobody above it is left (cli/launch/mpi_folder.h).
#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/log_files.h"
#include "cli/launch/mpi_folder.h"
#include "cli/launch/mpirun.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_end.h"
#include "cli/machine/cpu_binding.h"
#include "cli/process/child_loop.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_identity.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store_client.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

// How long a program that was told to stop may take; mpirun itself kills after a second.
constexpr auto kStopTime = 400ms;
constexpr auto kStoreTime = 20s;
// A failed rank's shim stays until the launcher has decided: were it to end at once, mpirun would
// take the job apart first.
constexpr auto kDecisionTime = 5s;

std::vector<std::string> program_environment(const ProcessInfo& process) {
  std::vector<std::string> environment;
  const auto of_mpirun =
      std::getenv(kShimTopologyParts) == nullptr ? "" : fmt::format("{}=", kTopologyParts);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    // mpirun puts its own folders into LD_LIBRARY_PATH. The program gets the user's: where libmpi
    // is found the launcher has learnt with that, too.
    if (text.starts_with("COUPLER_SHIM_") || text.starts_with("LD_LIBRARY_PATH=")) continue;
    // It tells ranks orte_tmpdir_base, beside which their libmpi refuses what mpirun itself takes.
    if (text.starts_with("OMPI_MCA_orte_local_tmpdir_base=")) continue;
    if (!of_mpirun.empty() && text.starts_with(of_mpirun)) continue;
    environment.emplace_back(text);
  }
  if (const char* path = std::getenv(kShimLibraryPath)) {
    environment.push_back(fmt::format("LD_LIBRARY_PATH={}", path));
  }
  environment.push_back(fmt::format("COUPLER_RANK={}", process.rank));
  environment.push_back(fmt::format("COUPLER_WORLD_SIZE={}", process.world));
  environment.push_back(fmt::format("COUPLER_LOCAL_RANK={}", process.local_rank));
  environment.push_back(fmt::format("COUPLER_LOCAL_WORLD_SIZE={}", process.local_world));
  return environment;
}

// Of "0-3:4-7" the second list for local rank 1; empty where there is none.
std::vector<int> cpus_of_rank(const std::string& lists, int local_rank) {
  std::istringstream parts(lists);
  std::string list;
  for (int i = 0; i <= local_rank; ++i) {
    if (!std::getline(parts, list, ':')) {
      return {};
    }
  }
  return parse_cpu_list(list);
}

// The launcher's orders as they come, and its end. The thread behind it ends with the process.
class Orders {
 public:
  explicit Orders(StoreClient& store) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::thread([this, &store] {
      try {
        for (int number = 0;;) {
          if (const auto text = store.get(order_key(number), 1h)) {
            ++number;
            push(decode_order(*text));
          }
        }
      } catch (const Error&) {
        push(std::nullopt);
      }
    }).detach();
  }

  int wake_fd() const { return wake_.get(); }

  // The signals to pass on; 0 stands for the end of the job. Where the launcher is gone, so are we.
  std::vector<int> take() {
    uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);  // empties it; it may have been empty
    const std::lock_guard lock(mutex_);
    if (launcher_gone_) {
      ::_exit(1);  // the guard then kills the program
    }
    return std::exchange(signals_, {});
  }

 private:
  void push(std::optional<ShimOrder> order) {
    {
      const std::lock_guard lock(mutex_);
      order ? signals_.push_back(order->signal) : void(launcher_gone_ = true);
    }
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);  // fails only when it is readable already
  }

  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<int> signals_;    // guarded by mutex_
  bool launcher_gone_ = false;  // guarded by mutex_
};

class Shim {
 public:
  Shim(ChildLoop& loop, StoreClient& store, int rank) : loop_(loop), orders_(store), rank_(rank) {}

  // Until the program has ended.
  RankEnd await_program() {
    while (true) {
      const auto events = loop_.wait(kill_at_, orders_.wake_fd());
      if (!events.ended.empty()) {
        loop_.finish_output();
        return {.rank = rank_,
                .status = events.ended.front().status,
                .stopped = stopped_,
                .last_lines = loop_.last_lines(0)};
      }
      for (const int signal : orders_.take()) {
        signal == 0 ? stop(SIGTERM) : loop_.group().signal_members(signal);
        stopped_ = stopped_ || ends_jobs(signal);
      }
      for (const int signal : events.signals) {  // mpirun's
        ends_jobs(signal) ? stop(signal) : loop_.group().signal_members(signal);
      }
      if (kill_at_ && std::chrono::steady_clock::now() >= *kill_at_) {
        loop_.child(0).signal(SIGKILL);
        kill_at_.reset();
      }
    }
  }

  // Until the launcher ends the job; at most kDecisionTime.
  void await_decision() {
    const auto deadline = deadline_after(kDecisionTime);
    while (std::chrono::steady_clock::now() < deadline) {
      for (const int signal : orders_.take()) {
        if (signal == 0) {
          return;
        }
      }
      const auto events = loop_.wait(deadline, orders_.wake_fd());
      if (!events.signals.empty()) {
        return;  // mpirun ends the job
      }
    }
  }

 private:
  static bool ends_jobs(int signal) {
    return signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTSTP && signal != SIGCONT;
  }

  void stop(int signal) {
    loop_.group().signal_members(signal);
    if (!stopped_) {
      stopped_ = true;
      kill_at_ = deadline_after(kStopTime);
    }
  }

  ChildLoop& loop_;
  Orders orders_;
  int rank_;
  bool stopped_ = false;
  std::optional<Deadline> kill_at_;
};

// Where the launcher's store is: in its job file, or on another machine, at place.
struct JobPlace {
  const char* job_file;
  const char* place;
};

[[noreturn]] void run_rank(ChildLoop& loop, const ProcessInfo& process, const JobPlace& of_job,
                           char** argv, int argc) {
  const auto [job_file, place] = of_job;
  const JobAddress job = place == nullptr ? read_job_file(job_file) : read_network_job(place);
  // The program finds a job file in any case; where the launcher's is on another machine, ours.
  const UniqueFd memory_file = place == nullptr ? UniqueFd() : make_job_memory_file(job);
  ChildCommand command;
  command.path = argv[2];
  command.arguments.assign(argv + 3, argv + argc);
  command.environment = program_environment(process);
  if (memory_file) {
    command.environment.push_back(
        fmt::format("COUPLER_JOB_FILE=/proc/{}/fd/{}", ::getpid(), memory_file.get()));
  }
  const char* cpus = std::getenv("COUPLER_SHIM_CPUS");  // of each local rank, by ":"
  command.cpus = cpus_of_rank(cpus == nullptr ? "" : cpus, process.local_rank);
  const char* logs = std::getenv("COUPLER_SHIM_LOG_DIR");
  const bool prefix = std::getenv("COUPLER_SHIM_PREFIX") != nullptr;
  loop.start(std::move(command),
             {.prefix = prefix ? fmt::format("[rank {}] ", process.rank) : "",
              .log = log_path(logs == nullptr ? "" : logs, process.rank)},
             true);
  loop.check_started(argv[3]);
  StoreClient store(job.host, job.port, job.secret, kStoreTime, job.tls);
  store.set(start_key(process.rank), fmt::format("{} {}", loop.child(0).pid(), machine_identity()));
  Shim shim(loop, store, process.rank);
  const RankEnd end = shim.await_program();
  try {
    store.set(end_key(process.rank), encode(end));
  } catch (const Error&) {
    ::_exit(1);  // as the orders do where the launcher is gone, whose thread still uses the store
  }
  loop.release_group();  // what the program left behind
  if (end.status != 0 && !end.stopped) {
    shim.await_decision();
  }
  // The launcher knows how the rank ended; to mpirun all is well, so that it adds nothing of its
  // own. Not through main: the thread behind the orders still uses the store.
  ::_exit(0);
}

}  // namespace

int run_rank_shim(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const ProcessInfo process = detect_process();
  const JobPlace of_job{std::getenv("COUPLER_JOB_FILE"), std::getenv(kShimStore)};
  if (argc < 4 || std::strcmp(argv[1], "--") != 0 ||
      (of_job.job_file == nullptr && of_job.place == nullptr) ||
      process.launcher != LauncherKind::kOpenMpi) {
    throw Error(ErrorCode::kUsage, "rank-shim is started by `coupler launch` through mpirun only",
                {.subject = "rank-shim", .hint = "use `coupler launch`"});
  }
  const char* folder = std::getenv(MpiFolder::kVariable);
  ChildLoop loop(folder == nullptr ? "" : folder);  // before any thread: it forks
  try {
    run_rank(loop, process, of_job, argv, argc);
  } catch (...) {
    loop.release_group();  // the launcher may be gone, and no other shim be left
    throw;
  }
}

}  // namespace coupler::cli
