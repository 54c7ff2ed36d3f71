#include "cli/config/config_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "base/duration.h"
#include "cli/text/json_text.h"
#include "config/schema.h"
#include "config/value.h"

namespace coupler::cli {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const SettingValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::chrono::nanoseconds>) {
          return format_duration(held);
        } else {
          return held;
        }
      },
      value);
}

std::string origin_of(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "default" : found->second.text;
}

}  // namespace

std::string explain_config_json(const Config& config) {
  const Config defaults;
  Json keys = Json::array();
  for (const SchemaKey& key : schema()) {
    const std::string name(key.name);
    keys.push_back({{"key", name},
                    {"value", to_json(key.get(config))},
                    {"source", origin_of(config, name)},
                    {"default", to_json(key.get(defaults))},
                    {"meaning", key.doc},
                    {"must_be", key.constraint}});
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const PluginOption& option : options) {
      keys.push_back(
          {{"key", "backend." + plugin + "." + option.key},
           {"value", std::visit([](const auto& value) -> Json { return value; }, option.value)},
           {"source", option.source.text}});
    }
  }
  const Json json = {{"file", config.file}, {"keys", keys}};
  return json_text(json);
}

}  // namespace coupler::cli
