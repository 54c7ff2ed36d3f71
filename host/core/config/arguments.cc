// take_config_arguments: removes Coupler's own arguments from a program's.
#include <coupler/error.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "config/config.h"

namespace coupler {
namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// -okey=value is ours only with a dotted key: -output=x and -O3 are the program's.
bool is_attached_override(std::string_view argument) {
  if (!starts_with(argument, "-o") || argument.size() < 3) return false;
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
    } else if (starts_with(argument, "--config=")) {
      set_file(request, std::string(argument.substr(9)));
      ++at;
    } else if (argument == "-o") {
      request.overrides.push_back(
          value_behind(at, argc, argv, "key=value", "-o backend.use=gloo_cpu"));
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

}  // namespace coupler
