/* Operations in a world of one process. Pure functions; any thread. */
#ifndef PLUGIN_IN_C_C_SELF_OPERATIONS_H_
#define PLUGIN_IN_C_C_SELF_OPERATIONS_H_

#include <coupler/distributed_backend.h>

uint64_t dtype_bytes(db_dtype dtype); /* 0 for an unknown dtype */
int is_message(const db_op* op);      /* DB_SEND or DB_RECV */

/* Whether this combination of kind, dtype, reduction and memory is supported. */
int is_supported(const db_op* op);

/* Describes what is wrong with the other fields of a supported op; NULL if they are valid. */
const char* argument_problem(const db_op* op);

/* Performs a collective. */
void perform(const db_op* op);

#endif /* PLUGIN_IN_C_C_SELF_OPERATIONS_H_ */
