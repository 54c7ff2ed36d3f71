// The programs of benchmarks that need LibTorch are one executable: `bench NAME ARGUMENTS…` runs
// the one that registered NAME, so that they compile together. All of it in the thread of main.
#pragma once

#include <string>
#include <vector>

namespace coupler::bench {

// As main, with NAME as argv[0].
using Program = int (*)(int argc, char** argv);

// A static object of the program's source, and so made before main. name is kept, not copied.
struct Registration {
  Registration(const char* name, Program program);
};

// The values of a program's options, all of which have to be there and in this order, as "--folder
// FOLDER --control SOCKET". Throws Error (kUsage) if they are not.
std::vector<std::string> values_of(int argc, char** argv, const std::string& options);

}  // namespace coupler::bench
