// `coupler rank-shim -- path program args…`: what mpirun starts as a rank. It starts the program as
// its child, gives it Coupler's rank variables, remembers its last lines and reports its end to the
// launcher through the store, since mpirun's own end says little about it. The program ends with
// the shim, the shim with mpirun (parent-death signal) or with the launcher (the store's
// connection).
#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "child_loop.h"
#include "commands.h"
#include "rank_end.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store_client.h"

extern "C" char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace coupler::cli {
namespace {

using namespace std::chrono_literals;

// How long a program that was told to stop may take; mpirun itself kills after a second.
constexpr auto kStopTime = 400ms;
constexpr auto kStoreTime = 20s;

std::vector<std::string> program_environment(const ProcessInfo& process) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "COUPLER_SHIM_PREFIX=", 20) != 0) {
      environment.emplace_back(*entry);
    }
  }
  environment.push_back(fmt::format("COUPLER_RANK={}", process.rank));
  environment.push_back(fmt::format("COUPLER_WORLD_SIZE={}", process.world));
  environment.push_back(fmt::format("COUPLER_LOCAL_RANK={}", process.local_rank));
  environment.push_back(fmt::format("COUPLER_LOCAL_WORLD_SIZE={}", process.local_world));
  return environment;
}

// Makes fd readable when the launcher is gone. Ends with the process.
void watch_launcher(StoreClient& store, int fd) {
  std::thread([&store, fd] {
    try {
      while (true) {
        store.get("coupler/launch/over", 1h);
      }
    } catch (const Error&) {
      const uint64_t one = 1;
      (void)!::write(fd, &one, sizeof one);  // a fresh counter takes it
    }
  }).detach();
}

RankEnd run_program(ChildLoop& loop, int launcher_gone) {
  bool stopped = false;
  std::optional<Deadline> kill_at;
  while (true) {
    const auto events = loop.wait(kill_at, launcher_gone);
    if (!events.ended.empty()) {
      loop.finish_output();
      return {.rank = 0,
              .status = events.ended.front().status,
              .stopped = stopped,
              .last_lines = loop.last_lines(0)};
    }
    uint64_t gone = 0;
    if (::read(launcher_gone, &gone, sizeof gone) > 0) {
      loop.group().signal_members(SIGKILL);
      ::_exit(1);
    }
    for (const int signal : events.signals) {
      loop.group().signal_members(signal);
      if (signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTSTP && !stopped) {
        stopped = true;
        kill_at = deadline_after(kStopTime);
      }
    }
    if (kill_at && std::chrono::steady_clock::now() >= *kill_at) {
      loop.child(0).signal(SIGKILL);
      kill_at.reset();
    }
  }
}

}  // namespace

int run_rank_shim(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const ProcessInfo process = detect_process();
  const char* job_file = std::getenv("COUPLER_JOB_FILE");
  if (argc < 4 || std::strcmp(argv[1], "--") != 0 || job_file == nullptr ||
      process.launcher != LauncherKind::kOpenMpi) {
    throw Error(ErrorCode::kUsage, "rank-shim is started by `coupler launch` through mpirun only",
                {.subject = "rank-shim", .hint = "use `coupler launch`"});
  }
  ChildLoop loop;  // before any thread: it forks
  const JobAddress job = read_job_file(job_file);
  ChildCommand command;
  command.path = argv[2];
  command.arguments.assign(argv + 3, argv + argc);
  command.environment = program_environment(process);
  const bool prefix = std::getenv("COUPLER_SHIM_PREFIX") != nullptr;
  loop.start(std::move(command), prefix ? ChildLoop::Output::kRelay : ChildLoop::Output::kInherit,
             prefix ? fmt::format("[rank {}] ", process.rank) : "", true);
  loop.check_started(argv[3]);
  StoreClient store(job.host, job.port, job.secret, kStoreTime);
  const UniqueFd launcher_gone(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  watch_launcher(store, launcher_gone.get());
  RankEnd end = run_program(loop, launcher_gone.get());
  end.rank = process.rank;
  store.set(end_key(process.rank), encode(end));
  loop.group().signal_members(SIGKILL);  // what the program left behind
  // Not through main: the watching thread still uses the store.
  ::_exit(exit_code_of(end.status));
}

}  // namespace coupler::cli
