#include "cli/config/config_problem.h"

#include "base/message.h"

namespace coupler::cli {

std::string source_of(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "" : found->second.text + ": ";
}

std::string sentence(const Error& error) {
  const std::string hint = hint_in(error.what());
  return without_hint(error.what()) + (hint.empty() ? "" : "; " + hint);
}

}  // namespace coupler::cli
