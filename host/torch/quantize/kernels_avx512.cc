// Compiled with -mavx512f; empty on other machines.
#if defined(__x86_64__)
#include <immintrin.h>

#include "quantize/kernel_loops.h"
#include "quantize/kernels.h"

namespace coupler::quantization {
namespace {

struct Sixteen {
  static constexpr int64_t kWidth = 16;
  __m512 value;

  static Sixteen zero() { return {_mm512_setzero_ps()}; }
  static Sixteen load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
  static Sixteen broadcast(float f) { return {_mm512_set1_ps(f)}; }
  static Sixteen fma(Sixteen a, Sixteen b, Sixteen c) {
    return {_mm512_fmadd_ps(a.value, b.value, c.value)};
  }
  float sum() const { return _mm512_reduce_add_ps(value); }
  static Sixteen of_bytes(const int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
  }
  // A permutation uses only the lower four bits of each index, so a table of 16 suffices.
  static void nibbles(const uint8_t* from, Sixteen* parts) {
    const __m512 levels = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    parts[0] = {_mm512_permutexvar_ps(bytes, levels)};
    parts[1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), levels)};
  }
};

}  // namespace

const PackedKernels kPackedAvx512 = {"AVX-512", &multiply_with<Sixteen>, &unpack_with<Sixteen>};

}  // namespace coupler::quantization
#endif
