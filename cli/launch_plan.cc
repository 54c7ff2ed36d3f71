#include "launch_plan.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "child_process.h"

namespace coupler::cli {

const char kLaunchUsage[] =
    "usage: coupler launch [-n N] [--config FILE] [-o key=value]... [--prefix] program [args...]\n"
    "\n"
    "Starts N processes of the program on this machine, which meet through Coupler.\n"
    "\n"
    "  -n N           how many processes (default: launch.processes of the configuration)\n"
    "  --config FILE  the configuration of launcher and processes (default: ./train.toml)\n"
    "  -o key=value   overrides one key of it; may be repeated\n"
    "  --prefix       write \"[rank 0] \" before every line of rank 0's output, and so on\n"
    "  -h, --help     this text\n"
    "\n"
    "Options end at the program; what follows is the program's own. Exit code: that of the first\n"
    "process that failed (128 + signal), 2 for a wrong command line or configuration, 3 for an\n"
    "unusable backend.\n";

namespace {

[[noreturn]] void fail_usage(const std::string& message, const std::string& subject) {
  throw Error(ErrorCode::kUsage, message,
              {.subject = subject, .hint = "`coupler launch --help` shows the options"});
}

int parse_count(const std::string& text) {
  int count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, count);
  if (status != std::errc() || stop != end || count < 1) {
    fail_usage(fmt::format("-n: '{}' is no number of processes (1 or more)", text), "-n");
  }
  return count;
}

// What stands before the program.
struct Options {
  std::optional<int> processes;
  ConfigRequest request;
  bool prefix = false;
  bool help = false;
  int program = 0;  // its index in argv
};

Options parse_options(int argc, char** argv) {
  Options options;
  int i = 1;
  // The value of an option: attached ("-n4", "--config=F") or the next argument.
  const auto value = [&](const std::string& name) -> std::string {
    const std::string text = argv[i];
    if (text.size() > name.size()) {
      return text.substr(name.size() + (name.size() > 2 ? 1 : 0));
    }
    if (i + 1 >= argc) {
      fail_usage(fmt::format("{} needs a value", name), name);
    }
    return argv[++i];
  };
  const auto is = [&](const std::string& name) {
    const std::string text = argv[i];
    return text == name || (name.size() > 2 ? text.rfind(name + "=", 0) == 0
                                            : text.rfind(name, 0) == 0 && text[1] != '-');
  };
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string text = argv[i];
    if (text == "--") {
      ++i;
      break;
    }
    if (text == "--help" || text == "-h") {
      options.help = true;
      return options;
    }
    if (text == "--prefix") {
      options.prefix = true;
    } else if (is("--config")) {
      options.request.file = value("--config");
    } else if (is("-n")) {
      options.processes = parse_count(value("-n"));
    } else if (is("-o")) {
      options.request.overrides.push_back(value("-o"));
      if (options.request.overrides.back().find('\n') != std::string::npos) {
        fail_usage("-o: a value must be on one line", "-o");
      }
    } else {
      fail_usage(
          fmt::format("unknown option '{}' (known: -n, --config, -o, --prefix, --help)", text),
          text);
    }
  }
  options.program = i;
  if (i >= argc) {
    fail_usage("no program was given: coupler launch -n 2 ./program", "program");
  }
  return options;
}

}  // namespace

LaunchPlan make_launch_plan(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  LaunchPlan plan;
  if (options.help) {
    plan.help = true;
    return plan;
  }
  plan.config = load_config(options.request);
  plan.overrides = options.request.overrides;
  plan.prefix = options.prefix;
  constexpr int64_t kMost = 4096;
  const int64_t processes = options.processes ? *options.processes : plan.config.launch.processes;
  if (processes > kMost) {
    fail_usage(fmt::format("{} processes are more than one launcher starts ({})", processes, kMost),
               "-n");
  }
  plan.processes = static_cast<int>(processes);
  plan.arguments.assign(argv + options.program, argv + argc);
  plan.program = plan.arguments.front();
  const char* path = std::getenv("PATH");
  plan.path = find_program(plan.program, path == nullptr ? "" : path);
  return plan;
}

}  // namespace coupler::cli
