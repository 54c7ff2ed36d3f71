/* The communicator of c_self. */
#ifndef PLUGIN_IN_C_C_SELF_COMMUNICATOR_H_
#define PLUGIN_IN_C_C_SELF_COMMUNICATOR_H_

#include <coupler/distributed_backend.h>

/* always_request: collectives return a (complete) request unless the caller blocks. */
db_status communicator_create(int64_t timeout_ns, int32_t always_request, db_communicator** result,
                              db_error* error);

#endif /* PLUGIN_IN_C_C_SELF_COMMUNICATOR_H_ */
