#include "mpi/crowd.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <mutex>

namespace db::mpi {
namespace {

std::mutex switch_mutex;
std::atomic<int32_t> crowd{INT32_MAX};  // from this many threads inside on, they yield
std::atomic<int32_t> inside{0};
bool (*set_yield)(bool) = nullptr;  // written once, before crowd

// Under the mutex, so the last thread to switch applies the latest count.
void turn_switch() {
  const std::lock_guard lock(switch_mutex);
  set_yield(inside.load(std::memory_order_relaxed) >= crowd.load(std::memory_order_relaxed));
}

}  // namespace

void yield_when_crowded(int32_t threads) {
  // Open MPI reads its setting mpi_yield_when_idle only at start-up and applies it this way.
  const auto function =
      reinterpret_cast<bool (*)(bool)>(dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  if (function == nullptr) return;
  set_yield = function;
  crowd.store(threads, std::memory_order_release);
}

Inside::Inside() {
  const int32_t now = inside.fetch_add(1, std::memory_order_relaxed) + 1;
  if (now == crowd.load(std::memory_order_acquire)) turn_switch();
}

Inside::~Inside() {
  const int32_t before = inside.fetch_sub(1, std::memory_order_relaxed);
  if (before == crowd.load(std::memory_order_acquire)) turn_switch();
}

}  // namespace db::mpi
