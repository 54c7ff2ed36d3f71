#include <string>
#include <vector>

#include "plugin/plugin.h"
#include "plugin/search.h"
#include "plugin/trial.h"

namespace coupler {

std::vector<PluginReport> list_plugins(const BackendConfig& backend) {
  std::vector<std::string> uses;
  if (backend.use.find('/') != std::string::npos) uses.push_back(backend.use);
  for (const FoundPlugin& found : found_plugins(backend)) uses.push_back(found.name);
  uses.emplace_back("single");
  std::vector<PluginReport> reports = try_plugins(uses, backend);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (reports[i].name.empty()) reports[i].name = uses[i];
  }
  return reports;
}

}  // namespace coupler
