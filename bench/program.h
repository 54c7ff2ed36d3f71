// The programs of benchmarks that need LibTorch are one executable: `bench NAME ARGUMENTS…` runs
// the one that registered NAME, so that they compile together. All of it in the thread of main.
#pragma once

namespace coupler::bench {

// As main, with NAME as argv[0].
using Program = int (*)(int argc, char** argv);

// A static object of the program's source, and so made before main. name is kept, not copied.
struct Registration {
  Registration(const char* name, Program program);
};

}  // namespace coupler::bench
