// NCCL's names for the ABI's data types and reductions, and which of them it supports. Pure
// functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include "common/op.h"
#include "nccl/symbols.h"

namespace db::nccl {

// The score for supports(): 2 for native NCCL operations, 1 for those made of several NCCL calls, 0
// for what NCCL lacks (16-bit integers and bitwise operations can be moved but not reduced).
int32_t score_of(const db_op& op);

// For operations that score_of() allows. bool is reduced as 0 and 1 of an unsigned byte.
ncclDataType_t datatype(db_dtype dtype);
ncclRedOp_t reduction(db_dtype dtype, db_reduce reduce);

// Writes scale as one element of dtype, for PREMUL_SUM. bytes: room for 8.
void write_scalar(db_dtype dtype, double scale, void* bytes);

}  // namespace db::nccl
