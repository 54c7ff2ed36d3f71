#include "cli/text/complete_setting.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <sstream>

#include "config/config.h"
#include "config/schema.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

using Candidates = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kUse = "backend.use", kBackend = "backend.";

void add_backends(Candidates& result, const std::string& start, bool bases_only) {
  result.emplace_back(start + "auto", "the best backend here");
  for (const PluginReport& report : list_plugins(BackendConfig())) {
    if (bases_only && report.needs_base) continue;
    result.emplace_back(start + report.name,
                        report.usable ? report.description : "cannot be used here");
  }
}

// The constraint lists the values in prose: "none, cpu or nvme". Words that the key does not accept
// are not values.
std::vector<std::string> values_of(const SchemaKey& key) {
  if (key.type == ValueType::kBoolean) return {"true", "false"};
  std::vector<std::string> values;
  if (key.type != ValueType::kString || key.accepts == nullptr) return values;
  // Parts end at a comma or at "or"; a part of several words is not a value.
  std::string part;
  int words = 0;
  const auto end_part = [&] {
    if (words == 1 && key.accepts(part)) values.push_back(part);
    words = 0;
  };
  std::istringstream text{std::string(key.constraint)};
  for (std::string word; text >> word;) {
    const bool ends = word.ends_with(',');
    if (ends) word.pop_back();
    if (word != "or") {
      part = word;
      ++words;
    }
    if (ends || word == "or") end_part();
  }
  end_part();
  return values;
}

// Adds the options of the table [backend.NAME] that `begun` has reached.
void add_backend_options(Candidates& result, const std::string& begun) {
  const size_t dot = begun.find('.', kBackend.size());
  if (dot == std::string::npos) return;
  const std::string table = begun.substr(0, dot + 1);
  BackendConfig backend;
  backend.use = begun.substr(kBackend.size(), dot - kBackend.size());
  if (backend.use.find('/') != std::string::npos) return;
  try {
    const Plugin plugin = Plugin::load(backend);
    if ((plugin.table().capabilities & DB_CAP_NEEDS_BASE) != 0) {
      if (begun.starts_with(table + "base=")) return add_backends(result, table + "base=", true);
      result.emplace_back(table + "base=", "the transport it runs on");
    }
    uint64_t count = 0;
    const db_option* const* options = plugin.table().default_options(&count);
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name = table + options[i]->key + "=";
      const bool is_boolean = options[i]->type == DB_OPTION_BOOL;
      if (is_boolean && begun.starts_with(name)) {
        result.emplace_back(name + "true", "");
        result.emplace_back(name + "false", "");
      } else if (!begun.starts_with(name)) {
        result.emplace_back(name,
                            options[i]->description == nullptr ? "" : options[i]->description);
      }
    }
  } catch (const Error&) {
    // Nothing to offer. The command itself reports why when it runs.
  }
}

}  // namespace

Candidates complete_setting(const std::string& begun) {
  Candidates result;
  for (const SchemaKey& key : schema()) {
    const std::string name = std::string(key.name) + "=";
    if (!begun.starts_with(name)) {
      result.emplace_back(name, key.doc);
    } else if (key.name == kUse) {
      add_backends(result, name, false);
    } else {
      for (const std::string& value : values_of(key)) result.emplace_back(name + value, "");
    }
  }
  if (begun.starts_with(kBackend)) add_backend_options(result, begun);
  return result;
}

}  // namespace coupler::cli
