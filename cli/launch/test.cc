// coupler test: starts coupler-self-test as `coupler launch` starts the user's program.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/launch_options.h"
#include "cli/machine/torch_info.h"
#include "cli/text/words.h"

namespace coupler::cli {

const char kTestHelp[] = R"help(usage: coupler test [--json] [OPTION of `coupler launch`]...

Tests a configuration before a training run depends on it. Starts processes as `coupler launch` does
and checks initialization, process execution, random numbers, collectives, splitting, the trigger,
data loaders, and that training matches one process on the joined batches. Ends with a verdict.

Exit code: 0 if all sections pass, 1 if one fails, otherwise that of `coupler launch`.

  --json  print a JSON object instead of lines

  coupler test -n 2 --config train.toml
)help";

namespace {

// Installed next to this program.
std::string self_test_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto program = self.parent_path() / "coupler-self-test";
  if (!error && std::filesystem::exists(program, error)) return program;
  throw Error(ErrorCode::kIo, fmt::format("{} does not exist", program.string()),
              {.subject = program.string(),
               .hint = "build and install libcoupler, which puts it next to the coupler program"});
}

// The self-test finds LibTorch where it was built or installed to; elsewhere it needs this. A
// user's own program knows its LibTorch.
void find_torch_for(const std::string& program) {
  const std::string root = torch_root();
  if (root.empty())
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} needs LibTorch, which is not in {}", program, expected_torch_root()),
        {.subject = "LibTorch", .hint = "run coupler setup-torch to install it"});
  if (root == COUPLER_TORCH_ROOT) return;
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string path =
      root + "/lib" + (before != nullptr && *before != '\0' ? std::string(":") + before : "");
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

}  // namespace

int run_test(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word != "--help" && word != "-h") continue;
    std::fputs(kTestHelp, stdout);
    return 0;
  }
  const std::string program = self_test_program();
  find_torch_for(program);
  const bool as_json = std::erase(words, "--json") > 0;
  words.push_back(program);
  words.insert(words.begin(), "launch");
  const auto count = static_cast<int>(words.size());
  std::vector<char*> arguments = argv_of(words);
  const int first = parse_launch_options(count, arguments.data()).program;
  if (const std::string& word = words[static_cast<size_t>(first)]; first != count - 1) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("coupler test runs its own program, so '{}' is one argument too many", word),
        {.subject = word, .hint = "'coupler test --help' explains the command"});
  }
  static char json[] = "--json";
  if (!as_json) return run_launch(count, arguments.data());
  arguments.insert(arguments.end() - 1, json);
  return run_launch(count + 1, arguments.data());
}

}  // namespace coupler::cli
