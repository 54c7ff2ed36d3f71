#include "accelerator/process_setup.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace coupler {
namespace {

// glibc refuses a larger mmap threshold.
constexpr int kMmapThreshold = 32 << 20;
constexpr int kTrimThreshold = 1 << 30;

#ifndef COUPLER_SANITIZED
// Ends the process after the program's own destructors and before LibTorch's. The latter only free
// memory of an exiting process and can take longer than a short run (0.08 s of CPU time per rank).
// The loader runs this library's destructors after those of the program, which depends on it, and
// before those of LibTorch, on which it depends. The exit status is no longer available there, so
// an on_exit() handler, which runs earlier, keeps it. COUPLER_FAST_EXIT=0 turns this off.
std::optional<int> exit_status;

[[gnu::destructor]] void exit_fast() {
  if (!exit_status) return;
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
  std::_Exit(*exit_status);
}
#endif

}  // namespace

void allow_fast_exit() {
#ifndef COUPLER_SANITIZED
  static std::once_flag once;
  std::call_once(once, [] {
    const char* setting = std::getenv("COUPLER_FAST_EXIT");
    if (setting != nullptr && std::string_view(setting) == "0") return;
    on_exit([](int status, void*) { exit_status = status; }, nullptr);
  });
#endif
}

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
