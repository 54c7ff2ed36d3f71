// Assertions of a harness about input that a parser accepted. A failure aborts the program, which
// the fuzzer notices.
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
