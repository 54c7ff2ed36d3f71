// coupler check-plugin: runs the conformance matrix, a separate program, over a plugin.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/process/capture_output.h"
#include "cli/text/command.h"

namespace coupler::cli {

namespace {

namespace fs = std::filesystem;

// In the installation's libexec folder, or among the tests of a build folder.
fs::path matrix_program(const fs::path& self) {
  const fs::path installed = self.parent_path() / "../libexec/coupler/coupler_matrix";
  for (const fs::path& path : {installed, self.parent_path() / "tests/coupler_matrix"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw Error(ErrorCode::kIo, fmt::format("{} does not exist", installed.string()),
              {.subject = installed.string(), .hint = "install coupler-dev, which contains it"});
}

int run_check_plugin(const Arguments& arguments) {
  const std::string first = arguments.place(0);
  std::error_code unreadable;
  const fs::path self = fs::read_symlink("/proc/self/exe", unreadable);
  if (first.find('/') != std::string::npos && !fs::exists(first, unreadable))
    throw Error(ErrorCode::kUsage, fmt::format("{} does not exist", first),
                {.subject = first, .hint = "build the plugin first, or correct the path"});
  // What is not a file is the name of a backend.
  const std::string plugin = fs::exists(first, unreadable) ? fs::absolute(first).string() : first;
  std::vector<std::string> command = {matrix_program(self), "--plugin", plugin, "--launcher", self};
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
            "operations|rounding|overlap|send_recv|split|threads|mismatch|killed|stopped|deadline|"
            "options",
            "check only this behavior; may be repeated"},
           {"--option KEY=VALUE",
            "like -o of `coupler launch`; may be repeated; a wrapper needs its base"},
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
