// `coupler rank-shim -- path program args…`: what mpirun starts as a rank. It starts the program as
// its child with Coupler's rank variables, keeps its last lines, and reports its end to the
// launcher through the store, because mpirun's own exit says little about it. The program ends with
// the shim; the shim ends with mpirun (parent-death signal) or with the launcher (the store's
// connection). If the launcher and mpirun are gone, the guard of the last shim to end removes what
// mpirun and the ranks left in the job's folder (cli/launch/mpi_folder.h).
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
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "cli/launch/mpi_folder.h"
#include "cli/launch/mpirun.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_exit.h"
#include "cli/machine/cpu_binding.h"
#include "cli/process/child_loop.h"
#include "cli/process/output_relay.h"
#include "cli/text/command.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "store/client.h"

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

// How long a program may take to stop; mpirun itself kills after a second.
constexpr auto kStopTime = 400ms;
constexpr auto kStoreTime = 20s;
// How long a failed rank's shim waits for the launcher's decision: if it ended at once, mpirun
// would tear the job down first.
constexpr auto kDecisionTime = 5s;

std::vector<std::string> program_environment(const rendezvous::ProcessInfo& process) {
  std::vector<std::string> environment;
  const auto of_mpirun =
      std::getenv(kShimTopologyParts) == nullptr ? "" : fmt::format("{}=", kTopologyParts);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    // mpirun adds its own folders to LD_LIBRARY_PATH. The program gets the user's value, with which
    // the launcher also found libmpi.
    if (text.starts_with("COUPLER_SHIM_") || text.starts_with("LD_LIBRARY_PATH=")) continue;
    // mpirun sets orte_tmpdir_base for ranks, and their libmpi rejects both variables together.
    if (text.starts_with("OMPI_MCA_orte_local_tmpdir_base=")) continue;
    if (!of_mpirun.empty() && text.starts_with(of_mpirun)) continue;
    environment.emplace_back(text);
  }
  if (const char* path = std::getenv(kShimLibraryPath)) {
    environment.push_back(fmt::format("LD_LIBRARY_PATH={}", path));
  }
  environment.push_back(fmt::format("COUPLER_RANK={}", process.rank));
  environment.push_back(fmt::format("COUPLER_WORLD_SIZE={}", process.world_size));
  environment.push_back(fmt::format("COUPLER_LOCAL_RANK={}", process.local_rank));
  environment.push_back(fmt::format("COUPLER_LOCAL_WORLD_SIZE={}", process.local_world_size));
  return environment;
}

// For local rank 1, the second list of "0-3:4-7"; empty if there is none.
std::vector<int> cpus_of_rank(const std::string& lists, int local_rank) {
  const std::vector<std::string> parts = split(lists, ':');
  const auto index = static_cast<size_t>(local_rank);
  return index < parts.size() ? parse_cpu_list(parts[index]) : std::vector<int>();
}

// Receives the launcher's orders and notices its end, on a thread that ends with the process.
class Orders {
 public:
  explicit Orders(store::StoreClient& store) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::thread([this, &store] {
      try {
        for (int number = 0;;) {
          if (const auto text = store.get(order_key(number), 1h)) {
            ++number;
            push(to_number<int>(*text).value_or(0));
          }
        }
      } catch (const Error&) {
        push(std::nullopt);
      }
    }).detach();
  }

  int wake_fd() const { return wake_.get(); }

  // The signals to pass on; 0 means the end of the job. Exits if the launcher is gone.
  std::vector<int> take() {
    uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);  // drains it; may already be empty
    const std::lock_guard lock(mutex_);
    if (launcher_gone_) {
      ::_exit(1);  // the guard then kills the program
    }
    return std::exchange(signals_, {});
  }

 private:
  void push(std::optional<int> signal) {
    {
      const std::lock_guard lock(mutex_);
      signal ? signals_.push_back(*signal) : void(launcher_gone_ = true);
    }
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);  // fails only if it is already readable
  }

  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<int> signals_;    // guarded by mutex_
  bool launcher_gone_ = false;  // guarded by mutex_
};

class Shim {
 public:
  Shim(ChildLoop& loop, store::StoreClient& store, int rank)
      : loop_(loop), orders_(store), rank_(rank) {}

  // Waits until the program has ended.
  RankExit await_program() {
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

  // Waits until the launcher ends the job, for at most kDecisionTime.
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

[[noreturn]] void run_rank(ChildLoop& loop, const rendezvous::ProcessInfo& process,
                           const std::vector<std::string>& words) {
  const char* place = std::getenv(kShimStore);  // set if the launcher's store is on the network
  const rendezvous::JobAddress job =
      place == nullptr ? rendezvous::read_job_file(environment_value("COUPLER_JOB_FILE"))
                       : read_network_job(place);
  // The program always gets a job file; if the launcher's is on another machine, it gets ours.
  const UniqueFd memory_file =
      place == nullptr ? UniqueFd() : rendezvous::make_job_memory_file(job);
  ChildCommand command;
  command.path = words[1];
  command.arguments.assign(words.begin() + 2, words.end());
  command.environment = program_environment(process);
  if (memory_file) {
    command.environment.push_back(
        fmt::format("COUPLER_JOB_FILE=/proc/{}/fd/{}", ::getpid(), memory_file.get()));
  }
  command.cpus = cpus_of_rank(environment_value("COUPLER_SHIM_CPUS"), process.local_rank);
  const bool prefix = std::getenv("COUPLER_SHIM_PREFIX") != nullptr;
  loop.start(std::move(command),
             {.prefix = prefix ? fmt::format("[rank {}] ", process.rank) : "",
              .log = log_path(environment_value("COUPLER_SHIM_LOG_DIR"), process.rank)},
             true);
  loop.check_started(words[2]);
  store::StoreClient store(job.host, job.port, job.secret, kStoreTime, job.tls);
  store.set(start_key(process.rank), fmt::format("{} {}", loop.child(0).pid(), machine_identity()));
  Shim shim(loop, store, process.rank);
  const RankExit end = shim.await_program();
  try {
    store.set(exit_key(process.rank), encode(end));
  } catch (const Error&) {
    ::_exit(1);  // the launcher is gone; not through main, as the orders' thread uses the store
  }
  loop.release_group();  // kills what the program left running
  if (end.status != 0 && !end.stopped) {
    shim.await_decision();
  }
  // The launcher knows how the rank ended. mpirun gets exit code 0, so that it prints nothing of
  // its own. Not through main, because the orders' thread still uses the store.
  ::_exit(0);
}

int run_rank_shim(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.program;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rendezvous::ProcessInfo process = rendezvous::detect_process();
  if (words.size() < 3 || words[0] != "--" ||
      (std::getenv("COUPLER_JOB_FILE") == nullptr && std::getenv(kShimStore) == nullptr) ||
      process.launcher != rendezvous::LauncherKind::kOpenMpi) {
    throw Error(ErrorCode::kUsage, "only `coupler launch` starts rank-shim, through mpirun",
                {.subject = "rank-shim", .hint = "use `coupler launch`"});
  }
  ChildLoop loop(environment_value(MpiFolder::kVariable));  // before any thread: it forks
  try {
    run_rank(loop, process, words);
  } catch (...) {
    loop.release_group();  // the launcher may be gone, and this may be the last shim
    throw;
  }
}

}  // namespace

Command rank_shim_command() { return {.name = "rank-shim", .summary = "", .run = run_rank_shim}; }

}  // namespace coupler::cli
