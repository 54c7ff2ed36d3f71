// explain_config: the table that `coupler config --explain` prints.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/precision.h"
#include "config/schema.h"
#include "config/value.h"

namespace coupler {
namespace {

constexpr size_t kColumns = 5;
using Row = std::array<std::string, kColumns>;

std::string source_text(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "default" : found->second.text;
}

std::string sentence(const SchemaKey& key) {
  std::string text(key.doc);
  if (!key.constraint.empty()) text += fmt::format(" Must be {}.", key.constraint);
  return text;
}

std::vector<Row> rows_of(const Config& config) {
  std::vector<Row> rows = {{"KEY", "VALUE", "SOURCE", "DEFAULT", "MEANING"}};
  const Config defaults;
  for (const SchemaKey& key : schema()) {
    const std::string name(key.name);
    rows.push_back({name, render(key.get(config)), source_text(config, name),
                    render(key.get(defaults)), sentence(key)});
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const PluginOption& option : options) {
      rows.push_back({"backend." + plugin + "." + option.key, render(option.value),
                      option.source.text, "-", "Option of the backend " + plugin + "."});
    }
  }
  return rows;
}

}  // namespace

std::string explain_config(const Config& config) {
  const std::vector<Row> rows = rows_of(config);
  std::array<size_t, kColumns> widths = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = config.file.empty() ? "No configuration file.\n"
                                         : "Configuration file: " + config.file + "\n";
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < kColumns; ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  text += "Mixed precision " + config.training.mixed_precision + ": " +
          describe_precision(config.training) + "\n";
  return text;
}

}  // namespace coupler
