// coupler test: starts coupler-self-test as `coupler launch` starts the user's program.
#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/process.h"
#include "cli/launch/launch_options.h"
#include "cli/machine/torch_info.h"
#include "cli/process/capture_output.h"
#include "cli/text/command.h"

namespace coupler::cli {

namespace {

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
  const std::string before = environment_value("LD_LIBRARY_PATH");
  const std::string path = root + "/lib" + (before.empty() ? "" : ":" + before);
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

int run_test(const Arguments& arguments) {
  const std::string program =
      installed_file({"coupler-self-test"},
                     "build and install libcoupler, which puts it next to the coupler program");
  find_torch_for(program);
  std::vector<std::string> words = arguments.handed_on;
  words.push_back(program);
  if (arguments.has("--json")) words.emplace_back("--json");
  return run_command(launch_command(), "launch", words);
}

}  // namespace

Command test_command() {
  return {.name = "test",
          .summary = "test a configuration, from rendezvous to a short training run",
          .options = {{"--json", "print a JSON object instead of lines"}},
          .hands_on = launch_command,
          .description = {"Tests a configuration before a training run depends on it. Starts "
                          "processes as `coupler launch` does and checks initialization, process "
                          "execution, random numbers, collectives, splitting, the trigger, data "
                          "loaders, and that training matches one process on the joined batches. "
                          "Ends with a verdict.",
                          "Exit code: 0 if all sections pass, 1 if one fails, otherwise that of "
                          "`coupler launch`."},
          .examples = {"coupler test -n 2 --config train.toml"},
          .run = run_test};
}

}  // namespace coupler::cli
