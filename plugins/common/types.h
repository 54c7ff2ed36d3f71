// The ABI's enumerations: sizes and names of data types, reductions and kinds, and which reduction
// is defined for which type. Pure functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace db {

uint64_t dtype_size(db_dtype dtype);        // bytes; 0 for an invalid type
const char* dtype_name(db_dtype dtype);     // "f32"; "dtype?" for an invalid type
const char* reduce_name(db_reduce reduce);  // "sum"
const char* kind_name(db_kind kind);        // "all_reduce"
bool is_valid_kind(db_kind kind);
bool is_reducing(db_kind kind);        // ALL_REDUCE, REDUCE, REDUCE_SCATTER(_V)
bool is_rooted(db_kind kind);          // BROADCAST, REDUCE, GATHER, SCATTER
bool is_point_to_point(db_kind kind);  // SEND, RECV
bool is_floating(db_dtype dtype);      // f16, bf16, f32, f64 (fp8 types have no arithmetic)

// Whether the ABI defines reduce for dtype (never for fp8 types).
bool is_reducible(db_dtype dtype, db_reduce reduce);

// The supports() score, 1 or 0, of a host-memory transport that implements every operation.
int32_t host_supports(const db_op& op);

}  // namespace db
