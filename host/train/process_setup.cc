#include "train/process_setup.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

namespace coupler {
namespace {

// glibc refuses a larger mmap threshold.
constexpr int kMmapThreshold = 32 << 20;
constexpr int kTrimThreshold = 1 << 30;

#ifndef COUPLER_SANITIZED
// Ends the process after the program's own destructors and before LibTorch's, which only give
// memory back to a process that is going away and take longer than many a short run (0.12 s).
// Registered while this library is loaded: after LibTorch was (its destructors come later) and
// before the program's own statics exist (theirs come first). COUPLER_FAST_EXIT=0 turns it off.
void exit_fast(int status, void*) {
  const char* setting = std::getenv("COUPLER_FAST_EXIT");
  if (setting != nullptr && setting[0] == '0') return;
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
  std::_Exit(status);
}

[[gnu::constructor]] void register_fast_exit() { on_exit(exit_fast, nullptr); }
#endif

}  // namespace

void keep_large_blocks() {
  mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
}

void limit_threads(int local_world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  at::set_num_threads(std::max(1, cores / std::max(1, local_world)));
}

}  // namespace coupler
