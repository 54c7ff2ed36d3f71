#include "cli/config/config_problem.h"

namespace coupler::cli {

std::string source_of(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "" : found->second.text + ": ";
}

std::string sentence(const Error& error) {
  std::string text = error.what();
  const std::string hint = "\n  hint: ";
  const size_t at = text.find(hint);
  return at == std::string::npos ? text : text.substr(0, at) + "; " + text.substr(at + hint.size());
}

}  // namespace coupler::cli
