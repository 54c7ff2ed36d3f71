// Compiled with -mavx2 -mfma; empty on other machines.
#if defined(__x86_64__)
#include <immintrin.h>

#include "quantize/kernel_loops.h"
#include "quantize/kernels.h"

namespace coupler::quantization {
namespace {

struct Eight {
  static constexpr int64_t kWidth = 8;
  __m256 value;

  static Eight zero() { return {_mm256_setzero_ps()}; }
  static Eight load(const float* from) { return {_mm256_loadu_ps(from)}; }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
  static Eight broadcast(float f) { return {_mm256_set1_ps(f)}; }
  static Eight fma(Eight a, Eight b, Eight c) {
    return {_mm256_fmadd_ps(a.value, b.value, c.value)};
  }
  float sum() const {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static Eight of_bytes(const int8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
  }
  static void nibbles(const uint8_t* from, Eight* parts) {
    const __m256i lower = _mm256_set1_epi32(15), eight = _mm256_set1_epi32(8);
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * half)));
      parts[half] = {_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(bytes, lower), eight))};
      parts[2 + half] = {_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bytes, 4), eight))};
    }
  }
};

}  // namespace

const PackedKernels kPackedAvx2 = {"AVX2", &multiply_with<Eight>, &unpack_with<Eight>};

}  // namespace coupler::quantization
#endif
