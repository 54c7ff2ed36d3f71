#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <optional>

#include "cli/launch/job_end.h"
#include "cli/launch/job_host.h"
#include "cli/launch/launch_modes.h"
#include "cli/launch/rank_environment.h"
#include "cli/launch/rank_exit.h"
#include "cli/process/child_loop.h"
#include "cli/process/output_relay.h"

namespace coupler::cli {
namespace {

using Activities = std::map<int, std::string>;

class LocalJob {
 public:
  explicit LocalJob(const LaunchPlan& plan) : plan_(plan) {
    if (plan.processes > 1 && plan.machines == 1) {
      host_.emplace(job_host_options(plan.config, plan.processes));
    }
  }

  void start() {
    const auto cpus = rank_cpus(plan_);
    for (int local = 0; local < plan_.per_machine(); ++local) {
      const int rank = plan_.first_rank() + local;
      ChildCommand command;
      command.path = plan_.path;
      command.arguments = plan_.arguments;
      command.environment = environment_with(
          rank_variables(plan_, local, host_ ? host_->job_file() : ""), plan_.owns_ranks);
      command.cpus = cpus[static_cast<size_t>(local)];
      const size_t child =
          loop_.start(std::move(command),
                      {.prefix = plan_.prefix ? fmt::format("[rank {}] ", rank) : "",
                       .log = log_path(plan_.log_dir, rank)},
                      rank == 0);
      if (host_) {
        host_->watch(rank, loop_.child(child).pid());
      }
    }
    loop_.check_started(plan_.program);
  }

  JobExit run() {
    while (loop_.running() > 0) {
      const auto events = loop_.wait(schedule_.next(), host_ ? host_->wake_fd() : -1);
      const auto now = std::chrono::steady_clock::now();
      for (const auto& ended : events.ended) {
        outcome_.record({.rank = plan_.first_rank() + static_cast<int>(ended.child),
                         .status = ended.status,
                         .stopped = schedule_.ordered_to_stop(),
                         .last_lines = loop_.last_lines(ended.child),
                         .when = now});
      }
      const auto losses = host_ ? host_->take_events().losses : std::vector<store::PeerLoss>();
      if (!schedule_.ordered_to_stop()) {
        write_all(2, outcome_.record_losses(losses));
      }
      for (const int signal : events.signals) {
        handle(signal, now);
      }
      if (const auto failure = outcome_.first_failure()) {
        schedule_.failed(*failure, outcome_.first_cause());
      }
      if (const auto signal = schedule_.due(now)) {
        loop_.group().signal_members(*signal);
      }
    }
    loop_.finish_output();
    write_all(2, interrupt_ ? fmt::format("coupler: ended by signal {} ({})\n", *interrupt_,
                                          ::strsignal(*interrupt_))
                            : outcome_.report(host_ ? host_->activities() : Activities()));
    write_outcome(plan_.outcome, outcome_);
    return {outcome_.exit_code(), interrupt_.has_value()};
  }

 private:
  void handle(int signal, Deadline now) {
    if (signal == SIGTSTP) {
      loop_.suspend();
      return;
    }
    loop_.group().signal_members(signal);
    if (signal != SIGUSR1 && signal != SIGUSR2) {
      interrupt_ = signal;
      schedule_.interrupted(now);
    }
  }

  const LaunchPlan& plan_;
  ChildLoop loop_;  // forks the guard, so it must precede the store's thread
  std::optional<JobHost> host_;
  StopSchedule schedule_{StopSchedule::Times{
      .interrupted = std::chrono::ceil<std::chrono::milliseconds>(plan_.config.checkpoint.grace)}};
  JobOutcome outcome_;
  std::optional<int> interrupt_;
};

}  // namespace

JobExit launch_local(const LaunchPlan& plan) {
  LocalJob job(plan);
  job.start();
  return job.run();
}

}  // namespace coupler::cli
