/*
 * coupler/shrink.h: the extension "coupler.shrink/1".
 *
 * A transport that can go on without some of its ranks, after one was lost or
 * before one is given back, answers DB_SHRINK to get_extension of its
 * communicators (db_communicator_functions, not DistributedBackend) with a
 * db_shrink. The ranks that stay get a new communicator without a new
 * bootstrap; those that leave take no part and may be gone.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, append only, a zero in a field newer than you means the behaviour
 * from before it existed.
 */
#ifndef COUPLER_SHRINK_H_
#define COUPLER_SHRINK_H_

#include <coupler/distributed_backend.h>

/* The extension, for get_extension. */
#define DB_SHRINK "coupler.shrink/1"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of db_shrink.shrink. */
enum {
  /* Pending operations of the communicator end now, with DB_ERR_ABORTED:
   * those that wait for a lost rank never would by themselves. The
   * communicator is FAILED afterwards, whether or not there is a result.
   * Without this flag pending operations are waited for, and the communicator
   * stays as it is. */
  DB_SHRINK_ABORT = 1u << 0
};

/* What get_extension(DB_SHRINK) of a communicator returns. */
typedef struct db_shrink {
  uint64_t struct_size;

  /* [comm-serial] Collective over the ranks that stay, each of which gives the
   * same ranks (excluded: excluded_count numbers, each once, in any order, at
   * least one, never the caller's own) and the same flags (DB_SHRINK_*). They
   * keep their order in *result, which is independent of the communicator and
   * may outlive it. Legal while the communicator is ACTIVE: to go on after a
   * loss call this instead of abort. Blocks up to the default timeout.
   *  - DB_OK: *result is the new communicator.
   *  - negative: *result = NULL. DB_ERR_TIMEOUT: another rank that stays did
   *    not call; the communicator is FAILED. */
  db_status (*shrink)(db_communicator *, const int32_t *excluded,
                      uint64_t excluded_count, uint64_t flags,
                      db_communicator **result, db_error *error);
} db_shrink;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_SHRINK_H_ */
