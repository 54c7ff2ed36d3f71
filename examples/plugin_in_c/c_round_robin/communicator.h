/* The communicator of c_round_robin: stores the options and forwards everything to a base. */
#ifndef PLUGIN_IN_C_C_ROUND_ROBIN_COMMUNICATOR_H_
#define PLUGIN_IN_C_C_ROUND_ROBIN_COMMUNICATOR_H_

#include <coupler/sharding.h>

/* owns_base: destroy the base together with the result. */
db_status round_robin_create(db_keep keep, db_communicator* base, int32_t owns_base,
                             db_communicator** result, db_error* error);

/* The keep argument of round_robin_create. */
db_keep round_robin_keep(const db_communicator* communicator);

#endif /* PLUGIN_IN_C_C_ROUND_ROBIN_COMMUNICATOR_H_ */
