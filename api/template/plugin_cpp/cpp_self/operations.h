// What the operations mean in a world of one. Pure functions; no thread rule.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace plugin {

uint64_t dtype_bytes(db_dtype dtype);  // 0 where there is no such type
bool is_message(const db_op &op);      // DB_SEND or DB_RECV

// Whether kind, dtype, reduction and memory go together.
bool is_supported(const db_op &op);

// Null, or what is wrong with the other fields of a supported op.
const char *argument_problem(const db_op &op);

// Performs a collective.
void perform(const db_op &op);

}  // namespace plugin
