// Kernels on packed weights on the CPU, for the widest vector units of this machine. Plain
// functions, any thread; threads may compute different rows. Does not use LibTorch.
//
// Why not ATen's (LibTorch 2.11): _weight_int8pack_mm and _weight_int4pack_mm_for_cpu are fast only
// for bfloat16 activations. For float they take 3 and 10 times as long as the float matrix product
// they would replace, for float16 7 and 15 times (4096 x 4096, one row).
#pragma once

#include <cstdint>

#include "quantize/pack.h"

namespace coupler::quantization {

struct PackedKernels {
  const char* name;
  // y[i * y_stride + row] = sum over k of x[i * columns + k] * w[row, k], for `count` rows i of x
  // and for rows begin to end - 1 of the weights. sums: for 4 bits, the sums of x's groups, [count,
  // groups]; else unused. Computed in float.
  void (*multiply)(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
                   const float* x, const float* sums, int64_t count, float* y, int64_t y_stride);
  // Unpacks the weights of these rows, [end - begin, columns].
  void (*unpack)(const PackedLayout& layout, const uint8_t* packed, int64_t begin, int64_t end,
                 float* weights);
};

extern const PackedKernels kPackedScalar;
#if defined(__x86_64__)
extern const PackedKernels kPackedAvx2;    // AVX2 and FMA
extern const PackedKernels kPackedAvx512;  // AVX-512 F
#endif

// The fastest that this machine can run.
const PackedKernels& packed_kernels();

}  // namespace coupler::quantization
