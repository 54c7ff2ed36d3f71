#include "config/wrapper_base.h"

#include <algorithm>

namespace coupler {

const PluginOption* find_base(const BackendConfig& backend, const std::string& wrapper) {
  const auto table = backend.options.find(wrapper);
  if (table == backend.options.end()) {
    return nullptr;
  }
  const auto& options = table->second;
  const auto found = std::find_if(options.begin(), options.end(),
                                  [](const PluginOption& option) { return option.key == "base"; });
  return found == options.end() ? nullptr : &*found;
}

std::string wrapper_base(const BackendConfig& backend, const std::string& wrapper) {
  const PluginOption* option = find_base(backend, wrapper);
  const auto* text = option == nullptr ? nullptr : std::get_if<std::string>(&option->value);
  return text == nullptr || text->empty() ? "auto" : *text;
}

}  // namespace coupler
