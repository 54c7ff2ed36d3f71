// bench NAME ARGUMENTS… runs a benchmark. Without a known name, it lists the names and exits
// with 2.
#include <coupler/error.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"

namespace coupler::bench {
namespace {

std::map<std::string, Program>& programs() {
  static std::map<std::string, Program> all;
  return all;
}

}  // namespace

Registration::Registration(const char* name, Program program) { programs().emplace(name, program); }

std::vector<std::string> values_of(int argc, char** argv, const std::string& options) {
  std::vector<std::string> values;
  std::istringstream words(options);
  std::string option, value;
  int at = 1;
  for (; words >> option >> value; at += 2) {
    if (at + 1 >= argc || argv[at] != option) break;
    values.push_back(argv[at + 1]);
  }
  if (words || at != argc) {
    const std::string program = std::string("bench ") + argv[0];
    throw Error(ErrorCode::kUsage, "usage: " + program + " " + options,
                {.subject = program, .hint = "start it with bench/run"});
  }
  return values;
}

}  // namespace coupler::bench

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  const auto& programs = coupler::bench::programs();
  const auto found = programs.find(argc > 1 ? argv[1] : "");
  if (found != programs.end()) return found->second(argc - 1, argv + 1);
  std::fputs("usage: bench NAME ARGUMENTS..., started by bench/run; NAME is one of:\n", stderr);
  for (const auto& [name, program] : programs) std::fprintf(stderr, "  %s\n", name.c_str());
  return 2;
}
