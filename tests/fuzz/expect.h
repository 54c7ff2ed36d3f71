// What a harness says about what a parser took. A failure ends the program, which is how a fuzzer
// learns of it.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace coupler::fuzz {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace coupler::fuzz
