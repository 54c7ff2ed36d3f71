// NCCL's names for the data types and reductions of the ABI, and what it can do of them. Pure
// functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include "common/op.h"
#include "nccl/symbols.h"

namespace db::nccl {

// What supports() answers: 2 for what NCCL has itself, 1 for what is made of several of its calls,
// 0 for what it lacks: 16-bit integers and bitwise operations are moved and not reduced.
int32_t score_of(const db_op& op);

// For what score_of() allows. bool is reduced as 0 and 1 of an unsigned byte.
ncclDataType_t datatype(db_dtype dtype);
ncclRedOp_t reduction(db_dtype dtype, db_reduce reduce);

// scale as one element of dtype, for PREMUL_SUM. bytes: room for 8.
void write_scalar(db_dtype dtype, double scale, void* bytes);

}  // namespace db::nccl
