// bench NAME ARGUMENTS…; without a name that it knows: the names, and exit code 2.
#include <cstdio>
#include <map>
#include <string>

#include "program.h"

namespace coupler::bench {
namespace {

std::map<std::string, Program>& programs() {
  static std::map<std::string, Program> all;
  return all;
}

}  // namespace

Registration::Registration(const char* name, Program program) { programs().emplace(name, program); }

}  // namespace coupler::bench

int main(int argc, char** argv) {
  const auto& programs = coupler::bench::programs();
  const auto found = programs.find(argc > 1 ? argv[1] : "");
  if (found != programs.end()) return found->second(argc - 1, argv + 1);
  std::fputs("usage: bench NAME ARGUMENTS..., started by bench/run; NAME is one of:\n", stderr);
  for (const auto& [name, program] : programs) std::fprintf(stderr, "  %s\n", name.c_str());
  return 2;
}
