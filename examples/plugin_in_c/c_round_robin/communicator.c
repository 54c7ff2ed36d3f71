#include "c_round_robin/communicator.h"

#include <coupler/forward.h>
#include <stdlib.h>

#include "common/error.h"

typedef struct sharder {
  db_forward forward; /* first, so that the host's pointer is a pointer to this struct */
  db_keep keep;
  int32_t owns_base;
} sharder;

static sharder* self(const db_communicator* communicator) { return (sharder*)(void*)communicator; }

/* The host splits the communicator for its own groups; each part is a sharder, too. */
static db_status split(db_communicator* communicator, int32_t color, int32_t key,
                       db_communicator** result, db_error* error) {
  db_communicator* part = NULL;
  db_status status = db_forward_split_base(communicator, color, key, &part, error);
  *result = NULL;
  if (status != DB_OK || part == NULL) return status;
  status = round_robin_create(self(communicator)->keep, part, 1, result, error);
  if (status != DB_OK) part->functions->destroy(part);
  return status;
}

static void destroy(db_communicator* communicator) {
  sharder* mine = self(communicator);
  if (mine->owns_base) mine->forward.base->functions->destroy(mine->forward.base);
  free(mine);
}

db_status round_robin_create(db_keep keep, db_communicator* base, int32_t owns_base,
                             db_communicator** result, db_error* error) {
  sharder* mine = calloc(1, sizeof(*mine));
  if (mine == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a communicator");
  db_forward_init(&mine->forward, base, destroy);
  if (db_forward_base_splits(base)) mine->forward.functions.split = split;
  mine->keep = keep;
  mine->owns_base = owns_base;
  *result = &mine->forward.communicator;
  return DB_OK;
}

db_keep round_robin_keep(const db_communicator* communicator) { return self(communicator)->keep; }
