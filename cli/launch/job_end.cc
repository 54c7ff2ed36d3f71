#include "cli/launch/job_end.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/durable_file.h"
#include "base/file_descriptor.h"
#include "cli/process/output_relay.h"

namespace coupler::cli {

void StopSchedule::failed(Deadline first, std::optional<Deadline> cause) {
  if (stage_ == Stage::kRunning) {
    stage_ = Stage::kSettling;
  }
  if (stage_ == Stage::kSettling) {
    const Deadline latest = first + times_.settle_without_cause;
    next_ = cause ? std::min(*cause + times_.settle, latest) : latest;
  }
}

void StopSchedule::interrupted(Deadline when) {
  ++interrupts_;
  told_ = true;
  if (stage_ == Stage::kKilled) {
    return;
  }
  stage_ = Stage::kTerminating;
  next_ = interrupts_ > 1 ? when : when + times_.interrupted;
}

std::optional<int> StopSchedule::due(Deadline now) {
  if (!next_ || now < *next_) {
    return std::nullopt;
  }
  told_ = true;
  if (stage_ == Stage::kSettling) {
    stage_ = Stage::kTerminating;
    next_ = now + times_.terminate;
    return SIGTERM;
  }
  stage_ = Stage::kKilled;
  next_.reset();
  return SIGKILL;
}

namespace {

// Time for the launchers of the other machines to notice the failure.
constexpr auto kPauseOfSeveralMachines = std::chrono::seconds(3);

// Writes to a link, a pipe or a device in place: replacing it would take it away from the processes
// that have it open.
void write_through(const std::string& file, const std::string& text) {
  // Without O_NONBLOCK, opening a FIFO would wait for a reader.
  const UniqueFd to(::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!to || ::write(to.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw_io("write", file, errno);
  }
}

// Whether another start can help: not after a signal, and not if the command line, the
// configuration or a plugin is wrong (codes 2 and 3).
bool is_worth_a_restart(const JobExit& end) {
  return end.code != 0 && end.code != 2 && end.code != 3 && !end.interrupted;
}

}  // namespace

void write_outcome(const std::string& file, const JobOutcome& outcome) {
  const std::string text = outcome.json();
  if (file.empty() || text.empty()) return;
  try {
    std::error_code absent;
    const auto status = std::filesystem::symlink_status(file, absent);
    const bool in_place =
        std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
    (in_place ? write_through : replace_file)(file, text);
  } catch (const Error& error) {
    write_all(2, fmt::format("coupler: --outcome: {}\n", error.what()));
  }
}

int run_with_restarts(LaunchPlan& plan, const std::function<JobExit()>& run) {
  while (true) {
    const JobExit end = run();
    if (!is_worth_a_restart(end) || plan.restart >= plan.max_restarts) {
      return end.code;
    }
    ++plan.restart;
    write_all(2, fmt::format("coupler: restart {} of {}\n", plan.restart, plan.max_restarts));
    if (plan.machines > 1) {
      std::this_thread::sleep_for(kPauseOfSeveralMachines);
    }
  }
}

}  // namespace coupler::cli
