// Element-wise arithmetic for every data type and reduction of the ABI. f16 and bf16 are combined
// in f32 and rounded to nearest-even; integers wrap around; bool is 0 or 1. Pure functions on the
// caller's memory; [any-thread]. On x86-64 the AVX2 versions are chosen at run time;
// they give bit-identical results.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstddef>
#include <cstdint>

namespace db {

// out[i] = a[i] (+) b[i] for count elements. out may be a or b but must not overlap them otherwise.
using ReduceFunction = void (*)(void* out, const void* a, const void* b, size_t count);

// The function for a type and a reduction, NULL if the ABI defines none. AVG and PREMUL_SUM
// combine as SUM does: the caller calls scale() before or divide() after.
ReduceFunction reduce_function(db_dtype dtype, db_reduce reduce);

// out[i] = in[i] * factor, for floating-point types (PREMUL_SUM). out may be in.
void scale(db_dtype dtype, void* out, const void* in, size_t count, double factor);

// data[i] = data[i] / divisor (AVG): floating-point types round, integers truncate toward zero.
void divide(db_dtype dtype, void* data, size_t count, int32_t divisor);

float f16_to_float(uint16_t value);
uint16_t float_to_f16(float value);
float bf16_to_float(uint16_t value);
uint16_t float_to_bf16(float value);

// The tables that connect these functions to the loops for one instruction set. Constant data.

struct ReduceRow {                  // one data type; NULL if the ABI defines nothing
  ReduceFunction combine[DB_BXOR];  // by db_reduce - 1
  void (*scale)(void* out, const void* in, size_t count, double factor);
  void (*divide)(void* data, size_t count, int32_t divisor);
};

struct ReduceTable {
  ReduceRow rows[DB_BOOL];  // by db_dtype - 1
};

extern const ReduceTable kReducePlain;
#if defined(__x86_64__)
extern const ReduceTable kReduceAvx2;  // needs AVX2
#endif

}  // namespace db
