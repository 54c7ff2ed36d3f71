// Environment variables that decide which code a program loads reach the ranks unchanged: the
// launcher adds, removes and sets none.
#include <filesystem>

#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

using Variables = std::map<std::string, std::string>;

const char* const kLoaderVariables[] = {"LD_PRELOAD",     "LD_LIBRARY_PATH", "LD_AUDIT",
                                        "LD_BIND_NOW",    "LD_DEBUG_OUTPUT", "LD_ORIGIN_PATH",
                                        "GLIBC_TUNABLES", "GCONV_PATH",      "LOCPATH"};

// The loader's variables of rank 1, one per line.
const std::string kShow =
    "[ $COUPLER_RANK = 0 ] || env | grep -E '^(LD_|GLIBC_|GCONV_|LOCPATH)' | LC_ALL=C sort";

Variables none() {
  Variables variables;
  for (const char* name : kLoaderVariables) {
    variables[name] = "";  // not set
  }
  return variables;
}

Variables some() {
  Variables variables = none();
  variables["LD_LIBRARY_PATH"] = "/nonexistent/one:/nonexistent/two";
  variables["LD_ORIGIN_PATH"] = "/nonexistent/three";
  variables["GLIBC_TUNABLES"] = "glibc.malloc.arena_max=2";
#ifndef COUPLER_SANITIZED  // a sanitizer must be loaded first
  variables["LD_PRELOAD"] = "libpthread.so.0";
#endif
  return variables;
}

std::string lines_of(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    text += value.empty() ? "" : name + "=" + value + "\n";
  }
  return text;
}

TEST(Launch, LoadersVariables_ReachRanksAsTheyWere_OrNotAtAll) {
  for (const auto& variables : {none(), some()}) {
    const auto result = run_coupler(launch_script(2, kShow), variables);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.output, lines_of(variables));
  }
}

TEST(Launch, LoadersVariablesThroughMpirun_ReachRanksAsTheyWere_OrNotAtAll) {
  if (!std::filesystem::exists("/usr/bin/mpirun.openmpi")) {
    GTEST_SKIP() << "mpirun (Debian: openmpi-bin) is not installed";
  }
  for (const auto& variables : {none(), some()}) {
    const auto result = run_coupler(launch_script(2, kShow, "mpi"), variables);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.output, lines_of(variables));
  }
}

}  // namespace
}  // namespace coupler::testing_launch
