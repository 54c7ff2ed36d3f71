/* The plan of c_round_robin: whole parameters are assigned to the ranks in turn. [any-thread] */
#ifndef PLUGIN_IN_C_C_ROUND_ROBIN_PLAN_H_
#define PLUGIN_IN_C_C_ROUND_ROBIN_PLAN_H_

#include <coupler/sharding.h>

db_status round_robin_plan(const db_communicator* communicator, const db_model* model,
                           const db_plan** plan, db_error* error);

/* Frees what round_robin_plan made; NULL is allowed. */
void round_robin_release(const db_plan* plan);

#endif /* PLUGIN_IN_C_C_ROUND_ROBIN_PLAN_H_ */
