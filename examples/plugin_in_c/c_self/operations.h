/* What the operations mean in a world of one. Pure functions; no thread rule. */
#ifndef PLUGIN_IN_C_C_SELF_OPERATIONS_H_
#define PLUGIN_IN_C_C_SELF_OPERATIONS_H_

#include <coupler/distributed_backend.h>

uint64_t dtype_bytes(db_dtype dtype); /* 0 where there is no such type */
int is_message(const db_op* op);      /* DB_SEND or DB_RECV */

/* Whether kind, dtype, reduction and memory go together. */
int is_supported(const db_op* op);

/* NULL, or what is wrong with the other fields of a supported op. */
const char* argument_problem(const db_op* op);

/* Performs a collective. */
void perform(const db_op* op);

#endif /* PLUGIN_IN_C_C_SELF_OPERATIONS_H_ */
