#include "cli/launch/restarts.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "cli/process/output_relay.h"
#include "io/durable_file.h"

namespace coupler::cli {
namespace {

// So that the launchers of the other machines have noticed the failure, too.
constexpr auto kPauseOfSeveralMachines = std::chrono::seconds(3);

}  // namespace

void write_outcome(const std::string& file, const JobOutcome& outcome) {
  const std::string text = outcome.json();
  if (file.empty() || text.empty()) return;
  try {
    replace_file(file, text);
  } catch (const Error& error) {
    write_all(2, fmt::format("coupler: --outcome: {}\n", error.what()));
  }
}

bool is_worth_a_restart(const JobEnd& end) {
  return end.code != 0 && end.code != 2 && end.code != 3 && !end.interrupted;
}

int run_with_restarts(LaunchPlan& plan, const std::function<JobEnd()>& run) {
  while (true) {
    const JobEnd end = run();
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
