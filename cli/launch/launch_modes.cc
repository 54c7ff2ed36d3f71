#include "cli/launch/launch_modes.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "cli/launch/job_end.h"
#include "cli/launch/rank_exit.h"
#include "cli/process/capture_output.h"
#include "cli/process/child_loop.h"
#include "cli/process/output_relay.h"

namespace coupler::cli {

JobExit run_foreign(const ForeignCommand& command) {
  ChildLoop loop;
  ChildCommand child;
  child.path = command.arguments.front();
  child.arguments = command.arguments;
  child.environment = environment_with(command.added);
  loop.start(std::move(child), {}, true);
  loop.check_started(command.launcher);
  StopSchedule schedule{StopSchedule::Times{}};
  std::optional<int> interrupt;
  int status = 0;
  while (loop.running() > 0) {
    const auto events = loop.wait(schedule.next());
    const auto now = std::chrono::steady_clock::now();
    for (const int signal : events.signals) {
      if (signal == SIGTSTP) {
        loop.suspend();
        continue;
      }
      loop.child(0).signal(signal);
      if (signal != SIGUSR1 && signal != SIGUSR2) {
        interrupt = signal;
        schedule.interrupted(now);
      }
    }
    for (const auto& ended : events.ended) {
      status = ended.status;
    }
    if (const auto signal = schedule.due(now)) {
      loop.child(0).signal(*signal);
    }
  }
  loop.finish_output();
  if (interrupt) {
    write_all(
        2, fmt::format("coupler: ended by signal {} ({})\n", *interrupt, ::strsignal(*interrupt)));
  } else if (status != 0) {
    write_all(2, fmt::format("coupler: {} {}\n", command.launcher, describe_status(status)));
  }
  return {exit_code_of(status), interrupt.has_value()};
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) {
    line += (line.empty() ? "" : " ") + shell_word(word);
  }
  return line;
}

}  // namespace coupler::cli
