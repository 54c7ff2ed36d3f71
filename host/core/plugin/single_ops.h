// What the operations of distributed_backend.h mean with a single rank. Pure functions;
// [any-thread].
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace coupler {

uint64_t dtype_bytes(db_dtype dtype);  // 0 if there is no such type

// Whether the combination of kind, dtype, reduction and memory is defined and offered.
bool self_supports(const db_op& op);

// Null, or what is wrong with the other fields of a supported op.
const char* self_argument_problem(const db_op& op);

bool is_point_to_point(db_kind kind);
uint64_t self_elements(const db_op& op);  // that this rank sends, or receives

// Performs a collective: a copy, scaled for DB_PREMUL_SUM.
void self_perform(const db_op& op);

}  // namespace coupler
