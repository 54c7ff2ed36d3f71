// coupler config: is the configuration right, and where does each value come from?
#include "config/config.h"

#include <cstdio>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "estimate/limit.h"
#include "recommend.h"

namespace coupler::cli {
namespace {

constexpr const char* kHelp =
    R"(usage: coupler config [--explain] [--config FILE] [-o KEY=VALUE]...
       coupler config recommend --limit SIZE [--world N] -- PROGRAM [ARGUMENT]...

Reads the configuration as a training program in this folder would, and says whether it is right.

  recommend       print the configuration with which a program trains fastest in so much memory
  --explain       print every key with its value, where the value comes from, the default and
                  the key's meaning
  --config FILE   read FILE instead of ./train.toml
  -o KEY=VALUE    set one key, e.g. -o backend.use=mpi or -o backend.gloo_cpu.chunk_bytes=65536

Later beats earlier: default, AcceleratorOptions in the program, file, environment, -o. A key such
as backend.use is set by the environment variable COUPLER_BACKEND_USE; options of a backend (tables
[backend.NAME]) have no variables, since names and keys both hold underscores.
)";

}  // namespace

int run_config(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "recommend")
    return run_recommend(argc - 1, argv + 1);
  const CommandLine line = read_command_line(argc, argv, {"--explain"});
  if (line.has("--help")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const Config config = load_config(line.config);
  memory_limit_of(config);  // a wrong size is an error
  if (line.has("--explain")) {
    std::fputs(explain_config(config).c_str(), stdout);
  } else if (config.file.empty()) {
    std::puts("The configuration is right; no file was read.");
  } else {
    std::printf("The configuration is right; %s was read.\n", config.file.c_str());
  }
  return 0;
}

}  // namespace coupler::cli
