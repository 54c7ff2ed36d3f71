// coupler config: makes a configuration, by questions or out of another program's; says whether one
// is right, and where each value comes from.
#include "config/config.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ask.h"
#include "comm/options.h"
#include "command_line.h"
#include "commands.h"
#include "config_import.h"
#include "config_json.h"
#include "config_keys.h"
#include "config_questions.h"
#include "estimate/limit.h"
#include "plugin/plugin.h"
#include "plugin/transport.h"
#include "recommend.h"

namespace coupler::cli {

const char kConfigHelp[] = R"help(usage: coupler config [--output FILE] [--force]
       coupler config default [--output FILE] [--force]
       coupler config import FILE [--output FILE] [--force]
       coupler config check [--json] [--config FILE] [-o KEY=VALUE]...
       coupler config --explain [--json] [--config FILE] [-o KEY=VALUE]...
       coupler config keys [BACKEND] [--json | --markdown]
       coupler config recommend --limit SIZE [--world N] -- PROGRAM [ARGUMENT]...

Asks what it has to know, with answers for this machine to choose from, and writes ./train.toml.

  default         write what Enter answers to every question
  import          write what FILE says: YAML of `accelerate config`, or DeepSpeed's JSON; and say
                  what was taken over, what was not, and why
  check           read the configuration as a training program in this folder would, backend and
                  its options included, and say whether it is right
  keys            print every key with its type, default, variable and meaning, or those of a
                  backend's table
  recommend       print the configuration with which a program trains fastest in so much memory
  --explain       print every key with its value, where the value comes from, the default and
                  the key's meaning
  --json          with check, keys and --explain: print a JSON object
  --output FILE   write FILE instead of ./train.toml
  --force         replace it where it exists
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key, e.g. -o backend.use=mpi or -o backend.gloo_cpu.chunk_bytes=65536

Later beats earlier: default, AcceleratorOptions in the program, file, environment, -o. A key such
as backend.use is set by the environment variable COUPLER_BACKEND_USE; options of a backend (tables
[backend.NAME]) have no variables, since names and keys both hold underscores.

  coupler config default && coupler launch ./train
)help";

namespace {

constexpr int kInterruptedCode = 130;  // 128 + SIGINT, as a shell would say

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
    } else if (word == "--output" && i + 1 < argc) {
      words.output = argv[++i];
    } else if (takes_input && words.input.empty() && word[0] != '-') {
      words.input = word;
    } else {
      throw Error(ErrorCode::kUsage, fmt::format("coupler config does not know '{}' here", word),
                  {.subject = word, .hint = "'coupler config --help' explains the command"});
    }
  }
  if (takes_input && words.input.empty())
    throw Error(ErrorCode::kUsage, "coupler config import needs a file",
                {.subject = "FILE", .hint = "YAML of `accelerate config`, or DeepSpeed's JSON"});
  return words;
}

// Before questions are asked, so that nobody answers them for nothing.
void require_room(const WriteWords& words) {
  std::error_code ignored;
  if (!words.force && std::filesystem::exists(words.output, ignored))
    throw Error(
        ErrorCode::kUsage, fmt::format("{} exists", words.output),
        {.subject = words.output, .hint = "--force replaces it; --output names another file"});
}

void write_and_say(const ConfigDraft& draft, const WriteWords& words, const std::string& origin) {
  write_config(words.output,
               draft.toml({origin, "coupler config --explain says what else can be set"}),
               words.force);
  std::printf("%s is written. coupler launch takes it%s.\n", words.output.c_str(),
              words.output == "train.toml" ? " from this folder" : " by --config");
}

int ask(const WriteWords& words) {
  require_room(words);
  try {
    write_and_say(ask_for_draft(machine_facts()), words, "Answers to coupler config");
  } catch (const Interrupted&) {
    std::fputs("\nNothing was written.\n", stderr);
    return kInterruptedCode;
  }
  return 0;
}

int import_file(const WriteWords& words) {
  std::ifstream in(words.input, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof())
    throw Error(ErrorCode::kIo, fmt::format("cannot read {}", words.input),
                {.subject = words.input, .hint = "give YAML of `accelerate config`, or JSON"});
  require_room(words);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  const Import imported =
      is_json ? import_deepspeed(text, words.input) : import_accelerate(text, words.input);
  std::fputs(describe(imported).c_str(), stdout);
  write_and_say(
      imported.draft, words,
      fmt::format("Imported from {}", std::filesystem::path(words.input).filename().string()));
  return 0;
}

// The backend of several processes, once it is loaded and has taken its options.
TransportPlan check_backend(const Config& config) {
  const TransportPlan plan =
      plan_transport(config.backend, MpiLaunch::kPossible, config.training.device == "cpu");
  BackendConfig backend = config.backend;
  backend.use = plan.use;
  const Plugin plugin = Plugin::load(backend);
  const bool wraps = (plugin.table().capabilities & DB_CAP_NEEDS_BASE) != 0;
  const PluginOptions options(plugin.table(), backend, wraps ? "base" : "");
  return plan;
}

void print_json(const nlohmann::ordered_json& json) {
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  std::printf("%s\n", json.dump(2, ' ', false, replace).c_str());
}

// What a rank would find out before it trains: also that the backend is there, and takes its
// options.
void check(const ConfigRequest& request, bool as_json) {
  const Config config = load_config(request);
  memory_limit_of(config);  // a wrong size is an error
  const auto processes = static_cast<long long>(config.launch.processes);
  std::optional<TransportPlan> plan;
  if (processes > 1) plan = check_backend(config);
  if (as_json) {
    nlohmann::ordered_json json = {
        {"right", true}, {"file", config.file}, {"processes", processes}};
    if (plan) json.update({{"backend", plan->use}, {"transport", plan->transport}});
    return print_json(json);
  }
  if (plan)
    std::printf("Each of %lld processes would use %s%s.\n", processes, plan->use.c_str(),
                plan->transport == plan->use ? "" : (" over " + plan->transport).c_str());
  std::printf("The configuration is right; %s.\n",
              config.file.empty() ? "no file was read" : (config.file + " was read").c_str());
}

int run_check(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv, {"--json"});
  try {
    check(line.config, line.has("--json"));
  } catch (const Error& error) {
    // The verdict is a result, and the error one as ever.
    if (line.has("--json")) print_json({{"right", false}, {"error", error.what()}});
    throw;
  }
  return 0;
}

}  // namespace

int run_config(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "recommend")
    return run_recommend(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == "keys") return run_config_keys(argc - 1, argv + 1);
  const std::string_view word = argc > 1 ? argv[1] : "";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--help" && std::string_view(argv[i]) != "-h") continue;
    std::fputs(kConfigHelp, stdout);
    return 0;
  }
  if (word == "check") {
    static char name[] = "config check";  // for messages
    argv[1] = name;
    return run_check(argc - 1, argv + 1);
  }
  if (word == "import") return import_file(read_write_words(argc - 1, argv + 1, true));
  if (word == "default") {
    const WriteWords words = read_write_words(argc - 1, argv + 1, false);
    write_and_say(default_draft(machine_facts()), words, "Made by coupler config default");
    return 0;
  }
  if (argc == 1 || word == "--output" || word == "--force")
    return ask(read_write_words(argc, argv, false));
  const CommandLine line = read_command_line(argc, argv, {"--explain", "--json"});
  if (line.has("--json") && !line.has("--explain"))
    throw Error(ErrorCode::kUsage, "config: --json goes with --explain or check",
                {.subject = "--json", .hint = "coupler config --explain --json"});
  const Config config = load_config(line.config);
  memory_limit_of(config);  // a wrong size is an error
  if (line.has("--explain")) {
    const std::string text =
        line.has("--json") ? explain_config_json(config) : explain_config(config);
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  std::printf("The configuration is right; %s.\n",
              config.file.empty() ? "no file was read" : (config.file + " was read").c_str());
  return 0;
}

}  // namespace coupler::cli
