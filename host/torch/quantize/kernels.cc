#include "quantize/kernels.h"

#include "quantize/kernel_loops.h"

namespace coupler::quantization {
namespace {

// One float: runs on every machine, and is the reference for the others.
struct Single {
  static constexpr int64_t kWidth = 1;
  float value;

  static Single zero() { return {0}; }
  static Single load(const float* from) { return {*from}; }
  void store(float* to) const { *to = value; }
  static Single broadcast(float f) { return {f}; }
  static Single fma(Single a, Single b, Single c) { return {a.value * b.value + c.value}; }
  float sum() const { return value; }
  static Single of_bytes(const int8_t* from) { return {static_cast<float>(*from)}; }
  static void nibbles(const uint8_t* from, Single* parts) {
    for (int64_t i = 0; i < kHalfBlock; ++i) {
      parts[i] = {static_cast<float>(static_cast<int>(from[i] & 15U) - 8)};
      parts[kHalfBlock + i] = {static_cast<float>((from[i] >> 4) - 8)};
    }
  }
};

}  // namespace

const PackedKernels kPackedScalar = {"scalar", &multiply_with<Single>, &unpack_with<Single>};

const PackedKernels& packed_kernels() {
#if defined(__x86_64__)
  static const PackedKernels& best =
      __builtin_cpu_supports("avx512f") != 0                                      ? kPackedAvx512
      : __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 ? kPackedAvx2
                                                                                  : kPackedScalar;
  return best;
#else
  return kPackedScalar;
#endif
}

}  // namespace coupler::quantization
