// The numbers of the ABI: sizes and names of data types, reductions and kinds, and which reduction
// is defined on which type. Pure functions; [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace db {

uint64_t dtype_size(db_dtype dtype);        // bytes; 0: no such type
const char* dtype_name(db_dtype dtype);     // "f32"; "dtype?" where there is none
const char* reduce_name(db_reduce reduce);  // "sum"
const char* kind_name(db_kind kind);        // "all_reduce"
bool is_valid_kind(db_kind kind);
bool is_reducing(db_kind kind);        // ALL_REDUCE, REDUCE, REDUCE_SCATTER(_V)
bool is_rooted(db_kind kind);          // BROADCAST, REDUCE, GATHER, SCATTER
bool is_point_to_point(db_kind kind);  // SEND, RECV
bool is_floating(db_dtype dtype);      // f16, bf16, f32, f64 (the fp8 types do not compute)

// Whether the ABI defines reduce on dtype (fp8 types: nothing).
bool is_reducible(db_dtype dtype, db_reduce reduce);

// What supports() of a host-memory transport that does everything answers: 1 or 0.
int32_t host_supports(const db_op& op);

}  // namespace db
