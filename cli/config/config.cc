// coupler config: creates a configuration from answers or from another program's, updates or checks
// one, and explains where each value comes from.
#include "config/config.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/config/auto_choice.h"
#include "cli/config/config_questions.h"
#include "cli/config/prompt.h"
#include "cli/import/config_import.h"
#include "cli/import/config_update.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "comm/raw_communicator.h"
#include "config/schema.h"
#include "config/value.h"
#include "estimate/settings.h"
#include "groups/mesh.h"
#include "plugin/plugin.h"

namespace coupler::cli {

// Subcommands with sources of their own.
Command config_check_command(), config_rank_command(), config_keys_command(), recommend_command();

namespace {

// What `coupler config --explain --json` prints. Pure function.

using Json = nlohmann::ordered_json;

Json to_json(const config::SettingValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::chrono::nanoseconds>) {
          return format_duration(held);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(held)>, config::MeshSize>) {
          return held.is_rest() ? Json("rest") : Json(held.ranks);
        } else {
          return held;
        }
      },
      value);
}

std::string origin_of(const config::Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "default" : found->second.text;
}

// {"file": …, "keys": [{"key", "value", "source", "default", "meaning", "must_be"}, …]}. Durations
// are strings, as in TOML; a backend's options have only key, value and source.
std::string explain_config_json(const config::Config& config) {
  const config::Config defaults;
  Json keys = Json::array();
  for (const config::SchemaKey& key : config::schema()) {
    const std::string name(key.name);
    keys.push_back({{"key", name},
                    {"value", to_json(key.get(config))},
                    {"source", origin_of(config, name)},
                    {"default", to_json(key.get(defaults))},
                    {"meaning", key.doc},
                    {"must_be", key.constraint}});
  }
  for (const auto& [plugin, options] : config.backend.options) {
    for (const config::PluginOption& option : options) {
      keys.push_back(
          {{"key", "backend." + plugin + "." + option.key},
           {"value", std::visit([](const auto& value) -> Json { return value; }, option.value)},
           {"source", option.source.text}});
    }
  }
  const Json json = {{"file", config.file}, {"keys", keys}};
  return json_text(json);
}

constexpr Option kOutput = {"--output FILE", "write to FILE instead of ./train.toml"};
constexpr Option kForce = {"--force", "overwrite an existing file"};

// Before the user answers questions, or a file is read, in vain.
void require_output(const Arguments& arguments) {
  const std::string output = arguments.value("--output", "train.toml");
  if (output.empty()) arguments.refuse("--output needs a file", "--output");
  require_writable(output, arguments.has("--force"));
}

void write_and_report(const ConfigDraft& draft, const Arguments& arguments,
                      const std::string& origin) {
  const std::string output = arguments.value("--output", "train.toml");
  write_config(output, draft.toml({origin, "coupler config --explain lists all other settings"}),
               arguments.has("--force"));
  std::printf("Wrote %s. coupler launch reads it%s.\n", output.c_str(),
              std::filesystem::path(output).lexically_normal() == "train.toml" ? " in this folder"
                                                                               : " with --config");
}

// Reads at most 1 MiB: anything longer is not a configuration.
std::string read_input(const std::string& path, const std::string& hint) {
  constexpr size_t kMost = size_t{1} << 20;
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", path, why),
                {.subject = path, .hint = hint});
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(errno_message());
  std::string text(kMost + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno_message());
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMost) fail("it is longer than 1 MiB");
  text.resize(size);
  return text;
}

int import_file(const Arguments& arguments) {
  const std::string path = arguments.place(0);
  const std::string text =
      read_input(path, "give YAML of `accelerate config`, or DeepSpeed's JSON");
  require_output(arguments);
  const Import imported = import_text(text, path);
  std::fputs(describe(imported).c_str(), stdout);
  write_and_report(imported.draft, arguments,
                   fmt::format("Imported from {}",
                               for_message(std::filesystem::path(path).filename().string())));
  return 0;
}

// Other programs' files have other forms and keys, so they are converted, not updated.
void refuse_foreign(const Arguments& arguments, const std::string& path, const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  if (!is_json && !path.ends_with(".yaml") && !path.ends_with(".yml")) return;
  arguments.refuse(fmt::format("{} is another program's file, not TOML", path), path,
                   fmt::format("convert it: coupler config import {}", path));
}

// The backend whose options are in the table [backend.NAME]. A path in backend.use does not say
// which table is that plugin's.
plugin::Plugin plugin_of_table(const std::string& name, config::BackendConfig backend) {
  if (backend.use.find('/') != std::string::npos) {
    plugin::Plugin used = plugin::Plugin::load(backend);
    if (used.name() == name) return used;
  }
  if (backend.use != name) backend.sha256.clear();  // which is another file's
  backend.use = name;
  return plugin::Plugin::load(backend);
}

// Only a plugin knows the keys of its table. Throws Error(kConfig) for one that it does not have.
// Returns a sentence for each table whose plugin cannot be loaded.
std::vector<std::string> check_backend_tables(const config::BackendConfig& backend) {
  std::vector<std::string> unchecked;
  for (const auto& [name, options] : backend.options) {
    std::optional<plugin::Plugin> plugin;
    try {
      plugin = plugin_of_table(name, backend);
    } catch (const Error& error) {
      const ErrorDetail& detail = error.detail();
      const bool not_found = detail.subject == "backend.use";
      unchecked.push_back(fmt::format(
          "the keys of [backend.{}] were not checked: {}; {}", name,
          one_line(without_hint(error.what())),
          not_found ? "install the plugin, or correct or remove the table" : detail.hint));
      continue;
    }
    const comm::PluginOptions checked(plugin->table(), backend);
  }
  return unchecked;
}

int update_file(const Arguments& arguments) {
  const std::string named = arguments.value("--config_file", "train.toml");
  const std::string path = arguments.place(0, named);
  if (arguments.has("--config_file") && path != named)
    arguments.refuse(fmt::format("'{}' and --config_file '{}' name two files", path, named), path,
                     "name one");
  const std::string text = read_input(path, "name the file: coupler config update FILE");
  refuse_foreign(arguments, path, text);
  const UpdatedConfig updated = update_config(text, path, renamed_keys());
  std::vector<std::string> unchecked;
  const auto check_tables = [&](const config::Config& config) {
    unchecked = check_backend_tables(config.backend);
  };
  // Both throw for a key of no version.
  if (updated.changes.empty()) {
    check_tables(config::load_config({.file = path, .environment = kNoVariables}));
  } else {
    write_config(path, updated.text, /*force=*/true, check_tables);
  }
  for (const std::string& sentence : unchecked)
    std::printf("%s: %s\n", path.c_str(), sentence.c_str());
  for (const std::string& change : updated.changes) std::printf("%s\n", change.c_str());
  if (!updated.changes.empty()) {
    std::printf("Updated %s.\n", path.c_str());
  } else {
    std::printf("%s has today's form%s; nothing was changed.\n", path.c_str(),
                unchecked.empty() ? "" : ", apart from the keys that were not checked");
  }
  return 0;
}

int write_default(const Arguments& arguments) {
  require_output(arguments);
  write_and_report(default_draft(machine_info()), arguments, "Created by coupler config default");
  return 0;
}

int ask(const Arguments& arguments) {
  require_output(arguments);
  try {
    write_and_report(prompt_for_draft(machine_info()), arguments, "Answers to coupler config");
  } catch (const Interrupted& by) {
    std::fputs("\nNothing was written.\n", stderr);
    return 128 + by.signal;  // as a shell would report it
  }
  return 0;
}

int explain(const Arguments& arguments) {
  const config::Config config = config::load_config(arguments.config);
  estimate::memory_limit_of(config);  // throws if the size is invalid
  const std::string text =
      arguments.has("--json")
          ? explain_config_json(config)
          : config::explain_config(config) + groups::explain(config) + explain_auto(config);
  std::fputs(text.c_str(), stdout);
  return 0;
}

int run_config(const Arguments& arguments) {
  const bool explains = arguments.has("--explain");
  const bool writes = arguments.has("--output") || arguments.has("--force");
  if (explains && writes)
    arguments.refuse("--explain writes no file", "--explain", "omit --output and --force");
  if (explains) return explain(arguments);
  if (arguments.has("--json") || arguments.config.file || !arguments.config.overrides.empty())
    arguments.refuse("give a subcommand, such as check, or --explain", "config");
  return ask(arguments);
}

}  // namespace

Command config_command() {
  return {
      .name = "config",
      .summary = "create, check or explain the configuration",
      .options = {{"--explain",
                   "print every key with its value, the value's source, the default and the key's "
                   "meaning, and which backend \"auto\" is, and why"},
                  {"--json", "with check, keys and --explain: print JSON"},
                  kOutput,
                  kForce},
      .config = true,
      .subcommands =
          {{.name = "default",
            .summary = "write a default configuration without asking",
            .options = {kOutput, kForce},
            .run = write_default},
           {.name = "import",
            .summary = "convert FILE, the YAML or JSON of `accelerate config` or DeepSpeed's JSON, "
                       "and list which settings were imported, which were not, and why",
            .forms = {"FILE"},
            .options = {kOutput, kForce},
            .run = import_file},
           {.name = "update",
            .summary =
                "give the keys of FILE (default: ./train.toml) that were renamed their names "
                "of today, and list them; values and comments stay. Refuses unknown keys, those "
                "of backends, too",
            .forms = {"[FILE]"},
            .options = {{"--config_file FILE", "the same as FILE"}},
            .run = update_file},
           config_check_command(),
           config_keys_command(),
           recommend_command(),
           config_rank_command()},
      .description = {"Asks questions, suggests answers that suit this machine, and writes "
                      "./train.toml."},
      .notes = {"Sources from lowest to highest precedence: default, AcceleratorOptions in the "
                "program, file, environment, -o. The environment variable for a key such as "
                "backend.use is COUPLER_BACKEND_USE. Backend options (tables [backend.NAME]) have "
                "no variables, because names and keys both contain underscores."},
      .examples = {"coupler config default && coupler launch ./train", "coupler config check -n 8",
                   "coupler config check --via mpirun --hostfile hosts"},
      .run = run_config};
}

}  // namespace coupler::cli
