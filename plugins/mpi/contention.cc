#include "mpi/contention.h"

#include <dlfcn.h>
#include <time.h>

#include <atomic>

#include "common/op.h"

namespace db::mpi {
namespace {

constexpr int64_t kLostNs = 2'000'000;         // ranks that compute side by side lose less
constexpr int64_t kContendedNs = 100'000'000;  // how long contention is assumed to last
constexpr int64_t kSleepNs = 10'000;           // the kernel adds its timer slack, 50 us
constexpr uint32_t kLooksPerSleep = 8;
constexpr uint32_t kPollsPerLook = 8;  // the clock costs a tenth of a poll

std::atomic<int64_t> contended_until{0};

// Of this thread's collective; polls_per_look is 0 outside.
thread_local uint32_t polls_per_look = 0;
thread_local uint32_t polls = 0;
thread_local uint32_t looks_awake = 0;  // while contended, since the last sleep
thread_local int64_t last_look = 0;     // 0: none yet

// Called by Open MPI in each round of polling; a result above 0 keeps it from yielding.
int on_poll() {
  if (polls_per_look == 0 || ++polls % polls_per_look != 0) return 0;
  const int64_t now = now_ns();
  if (last_look != 0) note_polling(last_look, now);
  last_look = now;
  if (!is_contended(now)) return 0;
  if (++looks_awake % kLooksPerSleep == 0) {
    const timespec piece{0, kSleepNs};
    nanosleep(&piece, nullptr);
  }
  return 1;
}

}  // namespace

bool is_contended(int64_t now_ns) {
  return now_ns < contended_until.load(std::memory_order_relaxed);
}

void note_polling(int64_t from_ns, int64_t to_ns) {
  if (to_ns - from_ns > kLostNs)
    contended_until.store(to_ns + kContendedNs, std::memory_order_relaxed);
}

void sleep_in_mpi_when_contended() {
  const auto add_callback =
      reinterpret_cast<int (*)(int (*)())>(dlsym(RTLD_DEFAULT, "opal_progress_register"));
  if (add_callback != nullptr) add_callback(on_poll);
}

void begin_polling(bool yields) {
  polls_per_look = yields ? 1 : kPollsPerLook;
  last_look = 0;
}

void end_polling() { polls_per_look = 0; }

}  // namespace db::mpi
