#include "common/reduce.h"

#include "common/op.h"
#include "common/reduce_kernels.h"

namespace db {
namespace {

const ReduceTable& table() {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  if (wide) return kReduceAvx2;
#endif
  return kReducePlain;
}

}  // namespace

ReduceFunction reduce_function(db_dtype dtype, db_reduce reduce) {
  return is_reducible(dtype, reduce) ? table().rows[dtype - 1].combine[reduce - 1] : nullptr;
}

void scale(db_dtype dtype, void* out, const void* in, size_t count, double factor) {
  if (is_reducible(dtype, DB_PREMUL_SUM)) table().rows[dtype - 1].scale(out, in, count, factor);
}

void divide(db_dtype dtype, void* data, size_t count, int32_t divisor) {
  if (is_reducible(dtype, DB_AVG)) table().rows[dtype - 1].divide(data, count, divisor);
}

float f16_to_float(uint16_t value) { return Float16::load(value); }
uint16_t float_to_f16(float value) { return Float16::store(value); }
float bf16_to_float(uint16_t value) { return BFloat16::load(value); }
uint16_t float_to_bf16(float value) { return BFloat16::store(value); }

}  // namespace db
