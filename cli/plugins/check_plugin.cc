// coupler check-plugin: the conformance matrix over a plugin's file, run as a program of its own.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/process/become.h"

namespace coupler::cli {

const char kCheckPluginHelp[] = R"help(usage: coupler check-plugin FILE [OPTION]...

Checks that a backend does what the interface promises: every operation, type, reduction and size
against a naive reference, blocking and not, in place and not, operations side by side, threads,
groups, ranks that disagree, are killed or stop, deadlines and options. Ends with a line a behaviour.

  --world N           processes (default 2)
  --behaviour operations|rounding|overlap|send_recv|split|threads|mismatch|killed|stopped|deadline|options
                      only this one; may be repeated
  --option KEY=VALUE  as -o of `coupler launch`; may be repeated: a wrapper needs its base
  --cover main|pairs|full
                      how much of what can be combined (default: main)
  --seed S            of what is chosen by chance
  --complete          what a backend does not support is a failure, too
  --json              print a JSON object instead of lines: each behaviour, and each operation with
                      its types
  -v                  each case

  coupler check-plugin build/libcoupler_mine.so --world 2 --complete
)help";

namespace {

namespace fs = std::filesystem;

// In the folder of what is for Coupler's own use, or among the tests of a checkout.
fs::path matrix_program(const fs::path& self) {
  const fs::path installed = self.parent_path() / "../libexec/coupler/coupler_matrix";
  for (const fs::path& path : {installed, self.parent_path() / "tests/coupler_matrix"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw Error(ErrorCode::kIo, fmt::format("{} is not there", installed.string()),
              {.subject = installed.string(),
               .hint = "it comes with Coupler's headers: install coupler-dev"});
}

}  // namespace

int run_check_plugin(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    std::fputs(kCheckPluginHelp, stdout);
    return 0;
  }
  if (first.empty() || first[0] == '-')
    throw Error(
        ErrorCode::kUsage,
        fmt::format("coupler check-plugin needs the file of a plugin first, not '{}'", first),
        {.subject = first, .hint = "'coupler check-plugin --help' explains the command"});
  std::error_code unreadable;
  const fs::path self = fs::read_symlink("/proc/self/exe", unreadable);
  if (first.find('/') != std::string::npos && !fs::exists(first, unreadable))
    throw Error(ErrorCode::kUsage, fmt::format("{} is not there", first),
                {.subject = first, .hint = "build the plugin first, or correct the path"});
  // A name without a slash is one of the backends there are.
  const std::string plugin = fs::exists(first, unreadable) ? fs::absolute(first).string() : first;
  std::vector<std::string> command = {matrix_program(self), "--plugin", plugin, "--launcher", self};
  command.insert(command.end(), argv + 2, argv + argc);
  become(command, "install coupler-dev again");
}

}  // namespace coupler::cli
