// coupler check-plugin: runs the conformance matrix, a separate program, over a plugin.
#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/process/capture_output.h"
#include "cli/text/command.h"

namespace coupler::cli {

namespace {

namespace fs = std::filesystem;

int run_check_plugin(const Arguments& arguments) {
  const std::string first = arguments.place(0);
  std::error_code unreadable;
  if (first.find('/') != std::string::npos && !fs::exists(first, unreadable))
    throw Error(ErrorCode::kUsage, fmt::format("{} does not exist", first),
                {.subject = first, .hint = "build the plugin first, or correct the path"});
  // What is not a file is the name of a backend.
  const std::string plugin = fs::exists(first, unreadable) ? fs::absolute(first).string() : first;
  // In the installation's libexec folder, or among the tests of a build folder.
  const std::string matrix =
      installed_file({"../libexec/coupler/coupler_matrix", "tests/coupler_matrix"},
                     "install coupler-dev, which contains it");
  std::vector<std::string> command = {matrix, "--plugin", plugin, "--launcher", own_program()};
  for (const Arguments::Given& given : arguments.given) {
    command.emplace_back(given.option.names()[0]);
    if (!given.option.value().empty()) command.push_back(given.value);
  }
  exec_program(command, "reinstall coupler-dev");
}

}  // namespace

// Its options are those of tests/matrix/main.cc, which reads them.
Command check_plugin_command() {
  return {
      .name = "check-plugin",
      .summary = "check that a backend conforms to the plugin interface",
      .forms = {"FILE"},
      .options =
          {{"--world N", "number of processes (default: 2)"},
           {"--behaviour "
            "operations|memory|rounding|overlap|send_recv|split|threads|mismatch|killed|stopped|"
            "deadline|options",
            "check only this behavior; may be repeated"},
           {"--option KEY=VALUE",
            "like -o of `coupler launch`; may be repeated; a wrapper needs its base"},
           {"--machines LIST",
            "the ranks are told that they are on several machines: 2,1 for two on one, one on "
            "another"},
           {"--cover main|pairs|full",
            "how many of the possible combinations to check (default: main)"},
           {"--seed S", "seed of the random choices"},
           {"--complete", "also fail for what the backend does not support"},
           {"--json",
            "print a JSON object instead of lines: each behavior, and each operation with its "
            "types"},
           {"-v", "print each case"}},
      .description = {"Checks that a backend does what the plugin interface promises. Every "
                      "operation, type, reduction and size is compared with a naive reference, "
                      "blocking and asynchronous, in-place and not. Concurrent operations, "
                      "threads, groups, deadlines and options are tested, too, as well as ranks "
                      "that disagree, are killed or stop. Prints one line per behavior at the "
                      "end."},
      .examples = {"coupler check-plugin build/libcoupler_mine.so --world 2 --complete"},
      .run = run_check_plugin};
}

}  // namespace coupler::cli
