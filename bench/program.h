// All benchmark programs that need LibTorch are in one executable, so that they compile together:
// `bench NAME ARGUMENTS…` runs the one registered as NAME. Used by the main thread only.
#pragma once

#include <string>
#include <vector>

namespace coupler::bench {

// Like main, with NAME as argv[0].
using Program = int (*)(int argc, char** argv);

// A static object in the program's source file, so it is constructed before main.
struct Registration {
  Registration(const char* name, Program program);
};

// The values of a program's options, such as "--folder FOLDER --control SOCKET". All options are
// required, in this order; otherwise throws Error(kUsage).
std::vector<std::string> values_of(int argc, char** argv, const std::string& options);

}  // namespace coupler::bench
