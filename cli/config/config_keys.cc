// coupler config keys: the reference of all keys, which docs/configuration.md includes.
#include <coupler/distributed_backend.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/text/command.h"
#include "cli/text/output.h"
#include "config/schema.h"
#include "config/value.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

struct KeyRow {
  std::string name;        // "backend.timeout"
  std::string type;        // "duration"
  std::string default_to;  // as in a TOML file
  std::string constraint;  // "> 0", completes "must be …"; "" if any value is valid
  std::string variable;    // environment variable; "" for a backend's options
  std::string meaning;     // one or more sentences
};

config::OptionValue default_of(const db_option& option) {
  switch (option.type) {
    case DB_OPTION_STRING:
      return std::string(option.string);
    case DB_OPTION_I64:
      return option.i64;
    case DB_OPTION_F64:
      return option.f64;
    default:
      return option.boolean != 0;
  }
}

// "string", "integer", "number" or "boolean", without the examples after it.
std::string type_text(config::ValueType type) {
  const std::string text(to_string(type));
  return text.substr(0, text.find(" ("));
}

std::string row_sentence(const KeyRow& row) {
  return row.constraint.empty() ? row.meaning
                                : fmt::format("{} Must be {}.", row.meaning, row.constraint);
}

// Escapes bars, which would end a table cell.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

// The keys of the schema.
std::vector<KeyRow> schema_rows() {
  std::vector<KeyRow> rows;
  const config::Config defaults;
  for (const config::SchemaKey& key : config::schema()) {
    rows.push_back({.name = std::string(key.name),
                    .type = type_text(key.type),
                    .default_to = config::render(key.get(defaults)),
                    .constraint = std::string(key.constraint),
                    .variable = config::environment_name(key.name),
                    .meaning = std::string(key.doc)});
  }
  return rows;
}

// The keys of [backend.NAME], declared by the plugin that `backend` names.
std::vector<KeyRow> backend_rows(const config::BackendConfig& backend) {
  const plugin::Plugin plugin = plugin::Plugin::load(backend);
  const std::string table = "backend." + plugin.name() + ".";
  std::vector<KeyRow> rows;
  // Wrappers do not declare their bases as options, because the host consumes them.
  for (const plugin::WantedBase& base : plugin::wanted_bases(plugin.table())) {
    rows.push_back({.name = table + base.option,
                    .type = "string",
                    .default_to = config::render(config::OptionValue(base.otherwise)),
                    .constraint = {},
                    .variable = {},
                    .meaning = base.description});
  }
  uint64_t count = 0;
  const db_option* const* options = plugin.table().default_options(&count);
  for (uint64_t i = 0; i < count; ++i) {
    const db_option& option = *options[i];
    const config::OptionValue value = default_of(option);
    rows.push_back({.name = table + option.key,
                    // The first types are those of OptionValue, in its order.
                    .type = type_text(static_cast<config::ValueType>(value.index())),
                    .default_to = config::render(value),
                    .constraint = {},
                    .variable = {},
                    .meaning = option.description == nullptr ? "" : option.description});
  }
  return rows;
}

std::string keys_text(const std::vector<KeyRow>& rows) {
  std::string text;
  for (const KeyRow& row : rows) {
    text += fmt::format("{} = {}\n    {}{}\n    {}\n", row.name, row.default_to, row.type,
                        row.variable.empty() ? "" : ", " + row.variable, row_sentence(row));
  }
  return text;
}

std::string keys_json(const std::vector<KeyRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const KeyRow& row : rows) {
    array.push_back({{"key", row.name},
                     {"type", row.type},
                     {"default", row.default_to},
                     {"constraint", row.constraint},
                     {"variable", row.variable},
                     {"meaning", row.meaning}});
  }
  // Strings come from plugins: invalid UTF-8 must not abort the listing.
  return json_text(array);
}

std::string keys_markdown(const std::vector<KeyRow>& rows) {
  const bool variables = !rows.empty() && !rows.front().variable.empty();
  std::string text = variables
                         ? "| key | type | default | variable | meaning |\n|---|---|---|---|---|\n"
                         : "| option | type | default | meaning |\n|---|---|---|---|\n";
  for (const KeyRow& row : rows) {
    text +=
        fmt::format("| `{}` | {} | `{}` | {}{} |\n", row.name, row.type, cell(row.default_to),
                    variables ? fmt::format("`{}` | ", row.variable) : "", cell(row_sentence(row)));
  }
  return text;
}

int print_keys(const Arguments& arguments) {
  const bool as_json = arguments.has("--json"), as_markdown = arguments.has("--markdown");
  if (as_json && as_markdown)
    arguments.refuse("it prints JSON or a table, not both", "--markdown",
                     "give --json or --markdown");
  std::vector<KeyRow> rows;
  if (arguments.places.empty()) {
    rows = schema_rows();
  } else {
    config::BackendConfig found = config::load_config(arguments.config).backend;
    found.use = arguments.place(0);
    rows = backend_rows(found);
  }
  const std::string text = as_json       ? keys_json(rows)
                           : as_markdown ? keys_markdown(rows)
                                         : keys_text(rows);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

Command config_keys_command() {
  return {.name = "keys",
          .summary = "print every configuration key, or those of a backend's table",
          .forms = {"[BACKEND]"},
          .options = {{"--json", "print a JSON array of objects"},
                      {"--markdown", "print a table, as in docs/configuration.md"}},
          .config = true,
          .description = {"Prints every configuration key with its type, default, constraint, "
                          "environment variable and meaning; with BACKEND, a name or a plugin's "
                          "path, the options of that backend instead, which have no environment "
                          "variables."},
          .examples = {"coupler config keys --json"},
          .run = print_keys};
}

}  // namespace coupler::cli
