#include "cli/config/auto_choice.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "cli/text/output.h"
#include "plugin/automatic.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"

namespace coupler::cli {
namespace {

// The key whose value is "auto": backend.use, or the option of a wrapper's base; "" if none is.
std::string key_of_auto(const config::BackendConfig& backend) {
  if (backend.use == "auto") return "backend.use";
  // In a child process first, since a bad plugin must not end this one.
  if (!plugin::try_plugin(backend.use, backend).can(DB_CAP_NEEDS_BASE)) return "";
  try {
    const plugin::Plugin wrapper = plugin::Plugin::load(backend);
    if (plugin::is_composite(wrapper.table())) return "";
    for (const plugin::WantedBase& wanted : plugin::wanted_bases(wrapper.table())) {
      if (plugin::use_of(wanted, backend, wrapper.name()) == "auto")
        return fmt::format("backend.{}.{}", wrapper.name(), wanted.option);
    }
  } catch (const Error&) {
    // `coupler config check` reports what is wrong with the backend.
  }
  return "";
}

std::string lines_of(const std::vector<plugin::Candidate>& candidates) {
  size_t width = 0;
  for (const plugin::Candidate& one : candidates) width = std::max(width, one.report.name.size());
  std::string text;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const plugin::Candidate& one = candidates[i];
    const std::string verdict = !one.rejection.empty()
                                    ? "passed over: " + one_line(without_hint(one.rejection))
                                    : fmt::format("score {}{}", one.report.score,
                                                  i == 0 ? ": taken, as it is the highest" : "");
    text += fmt::format("  {:<{}}  {}\n", one_line(one.report.name), width, verdict);
  }
  return text;
}

}  // namespace

std::string explain_auto(const config::Config& config) {
  const std::string key = key_of_auto(config.backend);
  if (key.empty()) return "";
  config::BackendConfig backend = config.backend;
  backend.use = "auto";
  plugin::Circumstances known = {.launch = plugin::MpiLaunch::kPossible,
                                 .on_host = config.training.device == "cpu",
                                 .spread = plugin::Spread::kOneMachine,
                                 .compositions = true};
  const std::vector<plugin::PluginReport> reports =
      plugin::probe_candidates(backend, known.on_host);
  std::string text = fmt::format("{} = \"auto\", for several processes on this machine:\n{}", key,
                                 lines_of(plugin::judge_candidates(reports, backend, known)));
  // `coupler launch` on each machine starts them there, and not mpirun.
  known.launch = plugin::MpiLaunch::kTooLate;
  known.spread = plugin::Spread::kShared;
  return text + fmt::format("{} = \"auto\", for several processes on each of several machines:\n{}",
                            key, lines_of(plugin::judge_candidates(reports, backend, known)));
}

}  // namespace coupler::cli
