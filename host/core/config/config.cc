#include "config/config.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/text.h"
#include "config/schema.h"
#include "config/toml.h"
#include "config/value.h"

namespace coupler::config {
namespace {

struct ConfigFile {
  std::string name;  // as messages show it
  std::string text;
};

constexpr const char* kDefaultFile = "train.toml";

[[noreturn]] void fail_file(const std::string& name, bool given, const std::string& why) {
  const std::string by = given ? " given by --config" : " (read because no --config was given)";
  const std::string hint =
      given ? "check the path; without --config, ./train.toml is read if it exists"
            : "fix or remove it, or name another file with --config";
  fail_config(fmt::format("cannot read '{}'{}: {}", name, by, why), name, hint);
}

std::string read_all(int descriptor, const std::string& name, bool given) {
  std::string text;
  char block[16384];
  while (text.size() <= kMaxTomlBytes) {
    const ssize_t count = read(descriptor, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(name, given, errno_message());
    if (count == 0) break;
    text.append(block, static_cast<size_t>(count));
  }
  return text;
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

// The file given by --config, which must exist, or ./train.toml, which need not. Throws
// Error(kConfig) if it cannot be read.
std::optional<ConfigFile> read_config_file(const std::optional<std::string>& given) {
  const std::string name = given.value_or(kDefaultFile);
  // Non-blocking: a named pipe without a writer must not block.
  const UniqueFd file(open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (!given && errno == ENOENT) return std::nullopt;
    fail_file(name, given.has_value(), errno_message());
  }
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) fail_file(name, given.has_value(), errno_message());
  if (!S_ISREG(status.st_mode)) fail_file(name, given.has_value(), "not a regular file");
  return ConfigFile{name, read_all(file.get(), name, given.has_value())};
}

// "key=value" to {key, value}; throws Error(kConfig) for anything else.
std::pair<std::string, std::string> split_override(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  if (equals == std::string::npos || key.empty() ||
      !std::all_of(key.begin(), key.end(), is_key_character)) {
    fail_config(fmt::format("-o '{}': expected key=value", text), text,
                "for example -o backend.use=auto; a program's own -o goes after '--'");
  }
  return {key, text.substr(equals + 1)};
}

using Kind = ValueSource::Kind;

constexpr std::string_view kOptionPrefix = "backend.";
constexpr std::string_view kSeeAllKeys = "'coupler config --explain' lists every key";

// backend.NAME.KEY: an option of the plugin NAME. Plugin names are bare keys.
struct OptionName {
  std::string plugin;
  std::string key;
};
std::optional<OptionName> split_option(std::string_view key) {
  if (!key.starts_with(kOptionPrefix)) return std::nullopt;
  key.remove_prefix(kOptionPrefix.size());
  const size_t dot = key.find('.');
  if (dot == 0 || dot == std::string_view::npos || dot + 1 == key.size()) return std::nullopt;
  if (key.front() == '"') return std::nullopt;
  return OptionName{std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

// "training" for "training.seed".
std::string_view table_name(std::string_view key) { return key.substr(0, key.find('.')); }

[[noreturn]] void fail_unknown(std::string_view key, const std::string& where) {
  std::vector<std::string> known = schema_names();
  for (const SchemaKey& entry : schema()) known.emplace_back(table_name(entry.name));
  const std::string near = did_you_mean(key, known);
  fail_config(fmt::format("{}: unknown key '{}'{}", where, key, near), key,
              near.empty() ? kSeeAllKeys : "");
}

// Messages say where the key is, which is source.text, or where its value is.
void set_key(Config& config, const SchemaKey& key, const RawValue& raw, const std::string& value_at,
             const ValueSource& source) {
  const auto value = convert(raw, key.type);
  if (!value) {
    fail_config(fmt::format("{}: {}: expected {}, got {}", value_at, key.name, to_string(key.type),
                            describe(raw)),
                key.name);
  }
  if (key.accepts != nullptr && !key.accepts(*value)) {
    fail_config(fmt::format("{}: {}: must be {}, got {}", value_at, key.name, key.constraint,
                            render(*value)),
                key.name);
  }
  key.set(config, *value);
  config.sources[std::string(key.name)] = source;
}

OptionValue to_option(const RawValue& raw, std::string_view key, const std::string& value_at) {
  if (const auto* text = std::get_if<std::string>(&raw)) return *text;
  if (const auto* integer = std::get_if<int64_t>(&raw)) return *integer;
  if (const auto* number = std::get_if<double>(&raw)) return *number;
  if (const auto* boolean = std::get_if<bool>(&raw)) return *boolean;
  fail_config(fmt::format("{}: {}: expected string, integer, float or boolean, got {}", value_at,
                          key, describe(raw)),
              key, "options of a backend are single values");
}

void set_option(Config& config, std::string_view full_key, OptionName name, OptionValue value,
                const ValueSource& source) {
  config.sources[std::string(full_key)] = source;
  auto& options = config.backend.options[name.plugin];
  std::erase_if(options, [&](const PluginOption& option) { return option.key == name.key; });
  options.push_back({std::move(name.key), std::move(value), source});
}

// A table of the schema, such as [training].
bool is_group(std::string_view key) {
  return std::any_of(schema().begin(), schema().end(),
                     [&](const SchemaKey& entry) { return table_name(entry.name) == key; });
}

// The table [backend.NAME].
bool is_option_table(std::string_view key) {
  return key.starts_with(kOptionPrefix) &&
         key.find('.', kOptionPrefix.size()) == std::string_view::npos;
}

void set_any(Config& config, std::string_view key, const RawValue& raw, const std::string& value_at,
             const ValueSource& source) {
  if (const SchemaKey* known = find_key(key)) {
    return set_key(config, *known, raw, value_at, source);
  }
  const size_t second_dot = key.find('.', std::min(key.find('.'), key.size() - 1) + 1);
  if (const SchemaKey* parent = find_key(key.substr(0, second_dot))) {
    return set_key(config, *parent, OtherValue{"table"}, source.text, source);
  }
  const auto* other = std::get_if<OtherValue>(&raw);
  const bool is_table = other != nullptr && other->what == "table";
  if (is_table && (is_group(key) || is_option_table(key))) return;  // an empty one
  if (is_group(key)) {
    fail_config(fmt::format("{}: {}: expected table, got {}", value_at, key, describe(raw)), key,
                fmt::format("write [{}] on its own line, and its keys below", key));
  }
  auto option = split_option(key);
  if (!option) fail_unknown(key, source.text);
  set_option(config, key, std::move(*option), to_option(raw, key, value_at), source);
}

// A value given as plain text, in a variable or after -o: parsed as TOML if valid, else a string.
void set_from_text(Config& config, std::string_view key, const std::string& text,
                   const ValueSource& source) {
  const SchemaKey* known = find_key(key);
  auto entries = read_toml_value(key, text);
  const bool is_text = known != nullptr && known->type == ValueType::kString;
  if (entries && is_text && !std::holds_alternative<std::string>(entries->front().value)) {
    entries.reset();  // COUPLER_BACKEND_SHA256=1234…: digits, but a string
  }
  if (!entries) entries = {{std::string(key), text, {}, {}}};
  for (const TomlEntry& entry : *entries) {
    set_any(config, entry.key, entry.value, source.text, source);
  }
}

void apply_code(Config& config, const ConfigRequest& request) {
  for (const auto& [key, value] : request.code) {
    const RawValue raw = std::visit([](const auto& held) { return RawValue(held); }, value);
    set_any(config, key, raw, "AcceleratorOptions", {Kind::kCode, "AcceleratorOptions"});
  }
}

// `coupler launch` passes its own --config and -o to its ranks. They count as part of the command
// line; the program's own arguments come later and override them.
constexpr std::string_view kLauncherFile = "COUPLER_CONFIG_FILE";
constexpr std::string_view kLauncherOverrides = "COUPLER_OVERRIDES";  // one per line

std::optional<std::string> find_in_environment(const ConfigRequest& request,
                                               std::string_view name) {
  const char* const* variable = request.environment == nullptr ? environ : request.environment;
  for (; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.size() > name.size() + 1 && text[name.size()] == '=' && text.starts_with(name)) {
      return std::string(text.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

void apply_file(Config& config, const ConfigRequest& request) {
  const auto file =
      read_config_file(request.file ? request.file : find_in_environment(request, kLauncherFile));
  if (!file) return;
  config.file = file->name;
  for (const TomlEntry& entry : read_toml(file->text, file->name)) {
    const auto at = [&](TextPosition position) {
      return fmt::format("{}:{}:{}", file->name, position.line, position.column);
    };
    set_any(config, entry.key, entry.value, at(entry.value_position),
            {Kind::kFile, at(entry.key_position)});
  }
}

// Variables of the schema's tables are keys; COUPLER_LOG, COUPLER_PLUGIN_PATH and others are not.
bool is_config_variable(std::string_view name) {
  return name.starts_with("COUPLER_") &&
         std::any_of(schema().begin(), schema().end(), [&](const SchemaKey& entry) {
           return name.starts_with(environment_name(table_name(entry.name)) + "_");
         });
}

const SchemaKey* find_variable(std::string_view name) {
  for (const SchemaKey& key : schema()) {
    if (environment_name(key.name) == name) return &key;
  }
  return nullptr;
}

[[noreturn]] void fail_unknown_variable(std::string_view name) {
  std::vector<std::string> known;
  for (const SchemaKey& key : schema()) known.push_back(environment_name(key.name));
  const std::string near = did_you_mean(name, known);
  fail_config(fmt::format("environment: unknown variable '{}'{}", name, near), name,
              near.empty()
                  ? "set a backend's own options in the file's table [backend.NAME] or with "
                    "-o backend.NAME.KEY=value"
                  : "");
}

void apply_environment(Config& config, const ConfigRequest& request) {
  const char* const* variable = request.environment == nullptr ? environ : request.environment;
  for (; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!is_config_variable(name) || name.size() == text.size()) continue;
    const SchemaKey* key = find_variable(name);
    if (key == nullptr) fail_unknown_variable(name);
    const std::string value(text.substr(name.size() + 1));
    if (value.empty()) continue;  // in shells, VARIABLE= means "not set"
    set_from_text(config, key->name, value, {Kind::kEnvironment, std::string(name)});
  }
}

void apply_override(Config& config, const std::string& text, const std::string& option) {
  const auto [key, value] = split_override(text);
  set_from_text(config, key, value, {Kind::kCommandLine, option + " " + key});
}

void apply_overrides(Config& config, const ConfigRequest& request) {
  std::istringstream lines(find_in_environment(request, kLauncherOverrides).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) apply_override(config, line, "coupler launch -o");
  }
  for (const std::string& text : request.overrides) apply_override(config, text, "-o");
}

}  // namespace

Config load_config(const ConfigRequest& request) {
  Config config;
  apply_code(config, request);
  apply_file(config, request);
  apply_environment(config, request);
  apply_overrides(config, request);
  return config;
}

// take_config_arguments: removes Coupler's own arguments from a program's.

namespace {

// -okey=value is ours only with a dotted key: -output=x and -O3 are the program's.
bool is_attached_override(std::string_view argument) {
  if (!argument.starts_with("-o") || argument.size() < 3) return false;
  const std::string_view key = argument.substr(2, argument.find('=') - 2);
  return argument.find('=') != std::string_view::npos && key.find('.') != std::string_view::npos &&
         key.find_first_of("/\\ ") == std::string_view::npos;
}

void set_file(ConfigRequest& request, const std::string& file) {
  if (file.empty()) {
    throw Error(ErrorCode::kUsage, "--config: expected a file, got ''",
                {.subject = "--config", .hint = "write --config train.toml"});
  }
  if (request.file && *request.file != file) {
    throw Error(ErrorCode::kUsage,
                "--config is given twice: '" + *request.file + "' and '" + file + "'",
                {.subject = "--config", .hint = "name one file; single keys are set with -o"});
  }
  request.file = file;
}

// The argument after argv[at], which must exist.
std::string value_behind(int at, int argc, char** argv, const std::string& expected,
                         const std::string& example) {
  if (at + 1 >= argc || std::string_view(argv[at + 1]) == "--") {
    throw Error(ErrorCode::kUsage, std::string(argv[at]) + ": expected " + expected + " after it",
                {.subject = argv[at], .hint = "write " + example});
  }
  return argv[at + 1];
}

}  // namespace

ConfigRequest take_config_arguments(int& argc, char** argv) {
  ConfigRequest request;
  int kept = std::min(argc, 1);
  int at = kept;
  while (at < argc) {
    const std::string_view argument = argv[at];
    if (argument == "--") break;
    if (argument == "--config") {
      set_file(request, value_behind(at, argc, argv, "a file", "--config train.toml"));
      at += 2;
    } else if (argument.starts_with("--config=")) {
      set_file(request, std::string(argument.substr(9)));
      ++at;
    } else if (argument == "-o") {
      request.overrides.push_back(value_behind(at, argc, argv, "key=value", "-o backend.use=auto"));
      at += 2;
    } else if (is_attached_override(argument)) {
      request.overrides.emplace_back(argument.substr(2));
      ++at;
    } else {
      argv[kept++] = argv[at++];
    }
  }
  while (at < argc) argv[kept++] = argv[at++];
  argc = kept;
  argv[argc] = nullptr;
  return request;
}

}  // namespace coupler::config
