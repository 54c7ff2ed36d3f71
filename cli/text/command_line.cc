#include "cli/text/command_line.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include "base/text.h"

namespace coupler::cli {

CommandLine read_command_line(int argc, char** argv, const std::vector<std::string>& flags) {
  CommandLine line;
  std::vector<std::string> known = flags;
  known.insert(known.end(), {"--help", "--config", "-o"});
  const std::string command = argv[0];
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help" || std::string_view(argv[i]) == "-h") {
      line.flags.insert("--help");  // even if the rest of the line is invalid
      return line;
    }
  }
  line.config = take_config_arguments(argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    bool is_known = false;
    for (const std::string& flag : flags) is_known = is_known || flag == argument;
    if (!is_known) {
      const std::string nearest = nearest_name(argument, known);
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: unknown argument '{}'{}", command, argument,
                              nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
                  {.subject = argument,
                   .hint = fmt::format("'coupler {} --help' lists the options", command)});
    }
    line.flags.insert(argument);
  }
  return line;
}

}  // namespace coupler::cli
