// What the operations of distributed_backend.h mean where there is one rank. Pure functions; no
// thread rule.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace coupler {

uint64_t dtype_bytes(db_dtype dtype);  // 0 where there is no such type

// Whether the combination of kind, dtype, reduction and memory is defined and offered.
bool self_supports(const db_op& op);

// Null, or what is wrong with the rest of a supported op.
const char* self_argument_problem(const db_op& op);

bool is_point_to_point(db_kind kind);
uint64_t self_elements(const db_op& op);  // that this rank sends, or receives

// Performs a collective: a copy, scaled for DB_PREMUL_SUM.
void self_perform(const db_op& op);

}  // namespace coupler
