// Driver: runs the matrix's behaviors on one backend, each in its own processes started by
// `coupler launch`, and judges their reports. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::matrix {

struct DriverArguments {
  std::string launcher;  // the coupler program
  std::string plugin;    // a name or path, as backend.use
  int world_size = 2;
  std::vector<std::string> behaviors;  // empty: all
  std::vector<std::string> options;    // -o of every launch
  std::string machines;  // as if the ranks were on machines: "2,1" has ranks 0 and 1 on the first
  std::string cover = "main";
  std::string seed;
  bool complete = false;
  bool json = false;
  bool verbose = false;
};

// Prints a line for each behavior, or one JSON object for all. Returns 0 if all passed.
int run_driver(const DriverArguments& arguments);

}  // namespace coupler::matrix
