// Operations in a world of one process. Pure functions; any thread.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

namespace plugin {

uint64_t dtype_bytes(db_dtype dtype);  // 0 for an unknown dtype
bool is_message(const db_op &op);      // DB_SEND or DB_RECV

// Whether this combination of kind, dtype, reduction and memory is supported.
bool is_supported(const db_op &op);

// Describes what is wrong with the other fields of a supported op; null if
// they are valid.
const char *argument_problem(const db_op &op);

// Performs a collective.
void perform(const db_op &op);

}  // namespace plugin
