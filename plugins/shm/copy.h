// Copies between a rank's buffers and shared memory. Pure functions; [any-thread].
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace db::shm {

// Buffers may be identical or empty.
inline void copy(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// The same past the caches (non-temporal stores), for results that are not read soon: saves reading
// each line of `to` before it is written.
inline void copy_past_caches(void* to, const void* from, uint64_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  const uint64_t lead = (64 - reinterpret_cast<uintptr_t>(out) % 64) % 64;
  if (bytes < lead + 64) return copy(to, from, bytes);
  copy(out, in, lead);
  uint64_t done = lead;
  for (; done + 64 <= bytes; done += 64) {
    for (uint64_t i = 0; i < 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + done + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + done + i)));
  }
  _mm_sfence();
  copy(out + done, in + done, bytes - done);
#else
  copy(to, from, bytes);
#endif
}

}  // namespace db::shm
