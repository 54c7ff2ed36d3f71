// coupler config: creates a configuration from answers or from another program's, checks one, and
// explains where each value comes from.
#include "config/config.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/file_descriptor.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/config/ask.h"
#include "cli/config/config_check.h"
#include "cli/config/config_import.h"
#include "cli/config/config_keys.h"
#include "cli/config/config_questions.h"
#include "cli/estimate/recommend.h"
#include "cli/text/command_line.h"
#include "cli/text/json_text.h"
#include "config/schema.h"
#include "config/value.h"
#include "estimate/settings.h"

namespace coupler::cli {

// What `coupler config --explain --json` prints. Pure function.

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

// {"file": …, "keys": [{"key", "value", "source", "default", "meaning", "must_be"}, …]}. Durations
// are strings, as in TOML; a backend's options have only key, value and source.
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

}  // namespace

const char kConfigHelp[] = R"help(usage: coupler config [--output FILE] [--force]
       coupler config default [--output FILE] [--force]
       coupler config import FILE [--output FILE] [--force]
       coupler config check [--json] [--ranks | --no-ranks] [OPTION of `coupler launch`]...
       coupler config --explain [--json] [--config FILE] [-o KEY=VALUE]...
       coupler config keys [BACKEND] [--json | --markdown]
       coupler config recommend --limit SIZE [--world N] -- PROGRAM [ARGUMENT]...

Asks questions, suggests answers that suit this machine, and writes ./train.toml.

  default         write a default configuration without asking
  import          convert FILE, the YAML or JSON of `accelerate config` or DeepSpeed's JSON, and
                  list which settings were imported, which were not, and why
  check           check the configuration here and on every rank that `coupler launch` would start
                  with the same options. Each rank loads and probes the backend and checks its
                  folders; all ranks compare version, backend and keys, and connect. No program
                  is needed. `coupler test` also tests devices and training
  --ranks         start ranks even if launch.processes is 1 and no option requests more
  --no-ranks      check here only, without starting ranks
  keys            print every key with its type, default, variable and meaning, or those of a
                  backend's table
  recommend       print the configuration that trains fastest within the given memory
  --explain       print every key with its value, the value's source, the default and the
                  key's meaning
  --json          with check, keys and --explain: print JSON
  --output FILE   write to FILE instead of ./train.toml
  --force         overwrite an existing file
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key, e.g. -o backend.timeout=30s or -o backend.NAME.OPTION=VALUE

Sources from lowest to highest precedence: default, AcceleratorOptions in the program, file,
environment, -o. The environment variable for a key such as backend.use is COUPLER_BACKEND_USE.
Backend options (tables [backend.NAME]) have no variables, because names and keys both contain
underscores.

  coupler config default && coupler launch ./train
  coupler config check -n 8
  coupler config check --via mpirun --hostfile hosts
)help";

namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& problem) {
  throw Error(ErrorCode::kUsage, "coupler config: " + problem,
              {.subject = word, .hint = "'coupler config --help' explains the command"});
}

struct WriteWords {
  std::string input, output = "train.toml";
  bool force = false;
};

WriteWords read_write_words(int argc, char** argv, bool takes_input) {
  WriteWords words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--force") {
      words.force = true;
    } else if (word == "--output") {
      words.output = i + 1 < argc ? argv[++i] : "";
    } else if (word.starts_with("--output=")) {
      words.output = word.substr(std::strlen("--output="));
    } else if (takes_input && words.input.empty() && !word.starts_with("-")) {
      words.input = word;
    } else {
      refuse(word, fmt::format("unknown argument '{}'", word));
    }
    if (words.output.empty()) refuse("--output", "--output needs a file");
  }
  if (takes_input && words.input.empty())
    throw Error(ErrorCode::kUsage, "coupler config import needs a file",
                {.subject = "FILE", .hint = "YAML of `accelerate config`, or DeepSpeed's JSON"});
  return words;
}

void write_and_say(const ConfigDraft& draft, const WriteWords& words, const std::string& origin) {
  write_config(words.output,
               draft.toml({origin, "coupler config --explain lists all other settings"}),
               words.force);
  std::printf("Wrote %s. coupler launch reads it%s.\n", words.output.c_str(),
              std::filesystem::path(words.output).lexically_normal() == "train.toml"
                  ? " in this folder"
                  : " with --config");
}

int ask(const WriteWords& words) {
  require_writable(words.output, words.force);  // before the user answers questions in vain
  try {
    write_and_say(ask_for_draft(machine_facts()), words, "Answers to coupler config");
  } catch (const Interrupted& by) {
    std::fputs("\nNothing was written.\n", stderr);
    return 128 + by.signal;  // as a shell would report it
  }
  return 0;
}

// Reads at most 1 MiB: anything longer is not a configuration.
std::string read_input(const std::string& path) {
  constexpr size_t kMost = size_t{1} << 20;
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", path, why),
                {.subject = path, .hint = "give YAML of `accelerate config`, or DeepSpeed's JSON"});
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(std::strerror(errno));
  std::string text(kMost + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMost) fail("it is longer than 1 MiB");
  text.resize(size);
  return text;
}

int import_file(const WriteWords& words) {
  const std::string text = read_input(words.input);
  require_writable(words.output, words.force);
  const Import imported = import_text(text, words.input);
  std::fputs(describe(imported).c_str(), stdout);
  write_and_say(imported.draft, words,
                fmt::format("Imported from {}",
                            shown(std::filesystem::path(words.input).filename().string())));
  return 0;
}

int explain(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--explain", "--json"});
  if (!line.has("--explain")) refuse("config", "give a subcommand, such as check, or --explain");
  const Config config = load_config(line.config);
  memory_limit_of(config);  // throws if the size is invalid
  const std::string text =
      line.has("--json") ? explain_config_json(config) : explain_config(config);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

int run_config(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "recommend") return run_recommend(argc - 1, argv + 1);
  if (word == "keys") return run_config_keys(argc - 1, argv + 1);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--help" && std::string_view(argv[i]) != "-h") continue;
    std::fputs(kConfigHelp, stdout);
    return 0;
  }
  if (word == "check") return run_config_check(argc - 1, argv + 1);
  if (word == "check-rank") return run_config_rank(argc > 2);  // a rank of `check`, with its --json
  if (word == "import") return import_file(read_write_words(argc - 1, argv + 1, true));
  if (word == "default") {
    const WriteWords words = read_write_words(argc - 1, argv + 1, false);
    write_and_say(default_draft(machine_facts()), words, "Created by coupler config default");
    return 0;
  }
  if (argc == 1 || word.starts_with("--output") || word == "--force")
    return ask(read_write_words(argc, argv, false));
  if (word[0] == '-') return explain(argc, argv);
  const std::string nearest =
      nearest_name(word, {"check", "default", "import", "keys", "recommend"});
  refuse(word, fmt::format("unknown subcommand '{}'{}", word,
                           nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

}  // namespace coupler::cli
