#include "cli/config/config_check.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/launch/launch_options.h"
#include "cli/text/json_text.h"
#include "cli/text/words.h"
#include "comm/raw_communicator.h"
#include "config/config.h"
#include "config/validate.h"
#include "estimate/settings.h"
#include "plugin/plugin.h"

namespace coupler::cli {

std::string source_of(const Config& config, const std::string& key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? "" : found->second.text + ": ";
}

std::string sentence(const Error& error) {
  const std::string hint = hint_in(error.what());
  return without_hint(error.what()) + (hint.empty() ? "" : "; " + hint);
}

namespace {

using Json = nlohmann::ordered_json;

// Checks the options of the named backend even if one process would not use it: several may.
void check_options(const Config& config) {
  const std::string& use = config.backend.use;
  if (use == "auto" || use == "single") return;
  std::optional<Plugin> plugin;
  try {
    plugin = Plugin::load(config.backend);
  } catch (const Error&) {
    return;  // one process needs none; `coupler plugins` reports why it cannot be used
  }
  const bool wraps = (plugin->table().capabilities & DB_CAP_NEEDS_BASE) != 0;
  const PluginOptions options(plugin->table(), config.backend, wraps ? "base" : "");
}

void check_here(const Config& config) {
  memory_limit_of(config);  // throws if the size is invalid
  for (const Error& problem : contradictions_of(config)) {
    const std::string& key = problem.detail().subject;
    throw Error(problem.code(), source_of(config, key) + problem.what(), {.subject = key});
  }
  check_options(config);
}

void say_right(const Config& config, bool as_json) {
  if (as_json) {
    std::fputs(json_text({{"right", true}, {"file", config.file}, {"processes", 1}}).c_str(),
               stdout);
    return;
  }
  std::printf("The configuration is valid; %s.\n",
              config.file.empty() ? "no file was read" : (config.file + " was read").c_str());
}

// Launches this program as the ranks, with the given options of `coupler launch`.
int check_ranks(std::vector<std::string> words, bool as_json) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  words.insert(words.begin(), "launch");
  const size_t given = words.size();
  words.insert(words.end(), {program, "config", "check-rank"});
  if (as_json) words.emplace_back("--json");
  const auto count = static_cast<int>(words.size());
  std::vector<char*> arguments = argv_of(words);
  const auto first = static_cast<size_t>(parse_launch_options(count, arguments.data()).program);
  if (first < given)
    throw Error(ErrorCode::kUsage,
                fmt::format("coupler config check does not take '{}'", words[first]),
                {.subject = words[first],
                 .hint = "name the configuration with --config FILE; no program is needed"});
  return run_launch(count, arguments.data());
}

int check(std::vector<std::string> words, bool as_json) {
  const auto take = [&](const char* word) { return std::erase(words, std::string(word)) > 0; };
  const bool ranks = take("--ranks"), file_only = take("--no-ranks");
  std::vector<std::string> named = words;
  named.insert(named.begin(), "config check");  // for messages
  auto count = static_cast<int>(named.size());
  std::vector<char*> rest = argv_of(named);
  const ConfigRequest request = take_config_arguments(count, rest.data());
  const bool launches = count > 1;  // has options of `coupler launch`
  if (file_only && (ranks || launches))
    throw Error(ErrorCode::kUsage, "--no-ranks works only with --config and -o",
                {.subject = "--no-ranks", .hint = "'coupler config --help' explains the command"});
  const bool is_program = launches && rest[1][0] != '-';
  if (!is_program) {
    const Config config = load_config(request);
    check_here(config);
    if (file_only || (!ranks && !launches && config.launch.processes == 1)) {
      say_right(config, as_json);
      return 0;
    }
  }
  return check_ranks(std::move(words), as_json);
}

}  // namespace

int run_config_check(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool as_json = std::erase(words, std::string("--json")) > 0;
  try {
    return check(std::move(words), as_json);
  } catch (const Error& error) {
    // Print the verdict, and still report the error as usual.
    if (as_json) {
      const Json problems = Json::array({error.what()});
      std::fputs(json_text({{"right", false}, {"problems", problems}}).c_str(), stdout);
    }
    throw;
  }
}

}  // namespace coupler::cli
