// coupler_matrix: checks that a backend behaves as the interface specifies. For any backend:
//   coupler_matrix --plugin NAME_OR_PATH [--world N] [--behaviour B]... [--option key=value]...
//                  [--machines RANKS,RANKS…] [--launcher coupler] [--cover main|pairs|full]
//                  [--seed S] [--complete]
//                  [--json] [-v]
// It starts itself as the ranks through `coupler launch`.
#include <coupler/error.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "driver.h"
#include "rank.h"

namespace coupler::matrix {
namespace {

int parse_world(const std::string& text) {
  int world_size = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, world_size);
  if (status == std::errc() && stop == end && world_size >= 1) return world_size;
  throw Error(ErrorCode::kUsage, fmt::format("--world: '{}' is not a number of processes", text),
              {.subject = "--world", .hint = "give an integer of at least 1"});
}

DriverArguments parse_driver(int argc, char** argv) {
  DriverArguments arguments;
  arguments.launcher =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "coupler";
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw Error(ErrorCode::kUsage, fmt::format("{} needs a value", name), {});
      return argv[++i];
    };
    if (name == "--plugin") {
      arguments.plugin = value();
    } else if (name == "--world") {
      arguments.world_size = parse_world(value());
    } else if (name == "--behaviour") {
      arguments.behaviors.push_back(value());
    } else if (name == "--option") {
      arguments.options.push_back(value());
    } else if (name == "--machines") {
      arguments.machines = value();
    } else if (name == "--launcher") {
      arguments.launcher = value();
    } else if (name == "--cover") {
      arguments.cover = value();
    } else if (name == "--seed") {
      arguments.seed = value();
    } else if (name == "--complete") {
      arguments.complete = true;
    } else if (name == "--json") {
      arguments.json = true;
    } else if (name == "-v") {
      arguments.verbose = true;
    } else {
      throw Error(
          ErrorCode::kUsage, fmt::format("unknown argument {}", name),
          {.subject = std::string(name), .hint = "'coupler check-plugin --help' lists them"});
    }
  }
  if (arguments.plugin.empty()) {
    throw Error(ErrorCode::kUsage, "--plugin is missing",
                {.subject = "--plugin", .hint = "give a backend's name or path"});
  }
  return arguments;
}

bool is_rank(int argc, char** argv) { return argc > 1 && std::strcmp(argv[1], "--rank-of") == 0; }

}  // namespace
}  // namespace coupler::matrix

int main(int argc, char** argv) {
  using namespace coupler;  // NOLINT(google-build-using-namespace): a main function
  try {
    if (matrix::is_rank(argc, argv)) return matrix::run_rank(argc, argv);
    return matrix::run_driver(matrix::parse_driver(argc, argv));
  } catch (const Error& error) {
    std::fprintf(stderr, "coupler: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coupler_matrix: %s\n", error.what());
    return 1;
  }
}
