// Sleeping on a word that several processes share. [any-thread]
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace db {

// Sleeps while *word is value, at most ns nanoseconds; may return earlier.
inline void futex_wait(const std::atomic<uint32_t>* word, uint32_t value, int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &time, nullptr, 0);
}

// Wakes every thread of every process that sleeps on word.
inline void futex_wake(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace db
