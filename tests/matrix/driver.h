// Driver: runs behaviours of the matrix on one backend, each in processes of its own started by
// `coupler launch`, and judges what they reported. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::matrix {

struct DriverArguments {
  std::string launcher;  // the coupler program
  std::string plugin;    // a name or path, as backend.use
  int world = 2;
  std::vector<std::string> behaviours;  // empty: all
  std::vector<std::string> options;     // -o of every launch
  std::string cover = "main";
  std::string seed;
  bool complete = false;
  bool verbose = false;
  std::string json;  // a file for what was found; "" for none
};

// Prints a line each; 0 where all behaved.
int run_driver(const DriverArguments& arguments);

}  // namespace coupler::matrix
