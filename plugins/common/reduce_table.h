// The table that connects reduce.cc to the loops for one instruction set. Constant data.
#pragma once

#include <coupler/distributed_backend.h>

#include "common/reduce.h"

namespace db {

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
