/* The communicator of c_trace: logs submitted operations and forwards them to a base. */
#ifndef PLUGIN_IN_C_C_TRACE_COMMUNICATOR_H_
#define PLUGIN_IN_C_C_TRACE_COMMUNICATOR_H_

#include <coupler/distributed_backend.h>

#include "c_trace/log.h"

/* owns_base: destroy the base together with the result. */
db_status trace_create(const trace_log* log, db_communicator* base, int32_t owns_base,
                       db_communicator** result, db_error* error);

#endif /* PLUGIN_IN_C_C_TRACE_COMMUNICATOR_H_ */
