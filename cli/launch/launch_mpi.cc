#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/process.h"
#include "cli/launch/job_end.h"
#include "cli/launch/job_host.h"
#include "cli/launch/mpi_folder.h"
#include "cli/launch/mpirun.h"
#include "cli/launch/network_job.h"
#include "cli/launch/rank_environment.h"
#include "cli/launch/rank_exit.h"
#include "cli/process/child_loop.h"

namespace coupler::cli {
namespace {

// When ordered to, the shims end their ranks well within this time. After it, mpirun is killed, and
// with it everything else.
constexpr auto kTerminate = std::chrono::milliseconds(1500);

// Once all ranks of a failed job have ended, mpirun has nothing left to do but still sleeps for a
// second. We do not wait for it, and remove the files it leaves.
constexpr auto kLeaveTime = std::chrono::milliseconds(100);
// Unless it has not forwarded all output yet, on a busy machine. The longest it gets for that.
constexpr auto kLongestLeave = std::chrono::seconds(3);

class MpiJob {
 public:
  explicit MpiJob(const LaunchPlan& plan)
      : plan_(plan),
        network_job_(stays_on_this_machine(plan) ? std::nullopt
                                                 : std::optional(make_network_job(plan))),
        host_(host_options()) {
    folder_.create();
  }

  void start(const Mpirun& mpirun) {
    ChildCommand command;
    command.path = mpirun.path;
    command.arguments = shim_command(plan_, mpirun);
    Variables added = shim_variables(plan_);
    if (network_job_) {
      network_job_->address.port = host_.port();
      added[kShimStore] = encode(*network_job_);
    } else {
      added["COUPLER_JOB_FILE"] = host_.job_file();
    }
    command.environment = environment_with(added, plan_.owns_ranks);
    for (auto& variable : folder_.environment(!network_job_)) {
      command.environment.push_back(std::move(variable));
    }
    loop_.start(std::move(command), {}, true);
    loop_.check_started("mpirun");
  }

  JobExit run() {
    int mpirun_status = 0;
    while (loop_.running() > 0) {
      const auto events = loop_.wait(next_deadline(), host_.wake_fd());
      const auto now = std::chrono::steady_clock::now();
      take_events();
      for (const int signal : events.signals) {
        handle(signal, now);
      }
      if (const auto failure = outcome_.first_failure()) {
        schedule_.failed(*failure, outcome_.first_cause());
      }
      if (!events.ended.empty()) {
        mpirun_status = events.ended.front().status;
      } else if (const auto signal = schedule_.due(now)) {
        stop(*signal);
      } else if (leave_by_ && now >= *leave_by_) {
        leave(now);
      }
    }
    take_events();
    loop_.finish_output();
    return {conclude(mpirun_status), interrupt_.has_value()};
  }

 private:
  JobHostOptions host_options() const {
    JobHostOptions options = job_host_options(plan_.config, plan_.processes);
    if (network_job_) {
      options.host = network_job_->address.host;
      options.secret = network_job_->address.secret;
    }
    return options;
  }

  void take_events() {
    outcome_.record_order(host_.take_ended());
    JobEvents news = host_.take_events();
    for (auto& end : news.reports) {
      outcome_.record(std::move(end));
      ++reported_;
    }
    if (!schedule_.ordered_to_stop()) {
      write_all(2, outcome_.record_losses(news.losses));
    }
    if (reported_ == plan_.processes && outcome_.cause() != nullptr && !leave_by_) {
      leave_by_ = deadline_after(kLeaveTime);
      kill_by_ = deadline_after(kLongestLeave);
    }
  }

  // The ranks have written all output, and mpirun waits for more: when it sleeps, it has forwarded
  // what there is.
  void leave(Deadline now) {
    if (status_of(loop_.child(0).pid()).state != 'S' && now < kill_by_) {
      leave_by_ = now + std::chrono::milliseconds(10);
      return;
    }
    loop_.child(0).signal(SIGKILL);
    leave_by_ = now + std::chrono::hours(1);  // do not kill it twice
  }

  // Whichever comes first: the schedule's deadline or mpirun's time to leave.
  std::optional<Deadline> next_deadline() const {
    const auto next = schedule_.next();
    return next && leave_by_ ? std::min(*next, *leave_by_) : leave_by_ ? leave_by_ : next;
  }

  // Orders the shims to stop instead of signaling mpirun, which would take a second and bury our
  // report in its output.
  void stop(int signal) {
    if (signal == SIGKILL) {
      loop_.child(0).signal(SIGKILL);
    } else {
      host_.tell_shims(0);
    }
  }

  void handle(int signal, Deadline now) {
    host_.tell_shims(signal);
    if (signal == SIGTSTP) {
      loop_.suspend();
      host_.tell_shims(SIGCONT);
    } else if (signal != SIGUSR1 && signal != SIGUSR2) {
      interrupt_ = signal;
      schedule_.interrupted(now);
    }
  }

  // The ranks' reports count; mpirun's own end counts only if a rank did not report.
  int conclude(int mpirun_status) {
    int silent = -1;  // the first rank that did not report
    for (int rank = plan_.processes - 1; rank >= 0; --rank) {
      silent = outcome_.knows(rank) ? silent : rank;
    }
    if (interrupt_) {
      write_all(2, fmt::format("coupler: ended by signal {} ({})\n", *interrupt_,
                               ::strsignal(*interrupt_)));
      return silent >= 0 || outcome_.exit_code() == 0 ? 128 + *interrupt_ : outcome_.exit_code();
    }
    const RankExit* cause = outcome_.cause();
    if (cause != nullptr && (!cause->stopped || silent < 0)) {
      write_all(2, outcome_.report(host_.activities()));
      write_outcome(plan_.outcome, outcome_);
      return outcome_.exit_code();
    }
    if (silent < 0) {
      return 0;
    }
    const int code = mpirun_status == 0 ? 1 : exit_code_of(mpirun_status);
    if (WIFSIGNALED(mpirun_status) || reported_ == 0) {
      write_all(2, fmt::format("coupler: mpirun {} before the ranks had ended\n{}",
                               describe_status(mpirun_status), quote_lines(loop_.last_lines(0))));
    } else {
      write_all(2, fmt::format("coupler: rank {} vanished without a report (was it killed together "
                               "with its rank-shim?); mpirun {}\n",
                               silent, describe_status(mpirun_status)));
    }
    return code;
  }

  const LaunchPlan& plan_;
  MpiFolder folder_;                       // removed last; made once the guard knows of it
  ChildLoop loop_{folder_.path()};         // forks the guard: must precede the store's thread
  std::optional<NetworkJob> network_job_;  // set if ranks also run on other machines
  JobHost host_;
  StopSchedule schedule_{StopSchedule::Times{
      .terminate = kTerminate,
      .interrupted = std::chrono::ceil<std::chrono::milliseconds>(plan_.config.checkpoint.grace)}};
  JobOutcome outcome_;
  int reported_ = 0;
  std::optional<Deadline> leave_by_;
  Deadline kill_by_;  // set with leave_by_
  std::optional<int> interrupt_;
};

}  // namespace

JobExit launch_mpi(const LaunchPlan& plan, const Mpirun& mpirun) {
  MpiJob job(plan);
  job.start(mpirun);
  return job.run();
}

}  // namespace coupler::cli
