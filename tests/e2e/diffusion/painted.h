// Runs the diffusion example and reads its result. Plain functions for one thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "run_program.h"

namespace coupler {

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs the program in the test's folder, without a time limit. arguments: for a shell. environment:
// "NAME=value", or "".
inline Outcome paint(const Workplace& here, const std::string& arguments,
                     const std::string& environment = "") {
  const std::string folder = here.path().string();
  const std::string command = "cd '" + folder + "' && " + environment +
                              " '" DIFFUSION_PROGRAM "' " + arguments +
                              " >out.txt 2>err.txt </dev/null";
  const int status = std::system(command.c_str());
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = file_text(here.path() / "out.txt"),
          .err = file_text(here.path() / "err.txt")};
}

// The number in "… peak 512 MiB"; 0 if it is missing.
inline int64_t peak_mib(const Outcome& outcome) {
  const size_t at = outcome.out.rfind("peak ");
  return at == std::string::npos ? 0 : std::stoll(outcome.out.substr(at + 5));
}

}  // namespace coupler
