/*
 * coupler/shrink.h: the extension "coupler.shrink/1".
 *
 * A transport that can continue without some of its ranks, after one was lost
 * or before one is released, returns a db_shrink for DB_SHRINK from
 * get_extension of its communicators (db_communicator_functions, not
 * DistributedBackend). The remaining ranks get a new communicator without a new
 * bootstrap; the excluded ranks do not take part and may be gone.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, append only, a zero in a field newer than you means the behavior
 * from before it existed.
 */
#ifndef COUPLER_SHRINK_H_
#define COUPLER_SHRINK_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_SHRINK "coupler.shrink/1"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of db_shrink.shrink. */
enum {
  /* Ends pending operations of the communicator with DB_ERR_ABORTED; those that
   * wait for a lost rank would never end otherwise. The communicator is FAILED
   * afterwards, whether or not there is a result. Without this flag, shrink
   * waits for pending operations and leaves the communicator unchanged. */
  DB_SHRINK_ABORT = 1u << 0
};

/* Returned by get_extension(DB_SHRINK) of a communicator. */
typedef struct db_shrink {
  uint64_t struct_size;

  /* [comm-serial] Collective over the remaining ranks. Each passes the same
   * excluded ranks (excluded_count distinct numbers in any order, at least one,
   * never the caller's own) and the same flags (DB_SHRINK_*). The remaining
   * ranks keep their order in *result, which is independent of the communicator
   * and may outlive it. Legal while the communicator is ACTIVE: to continue
   * after a loss, call this instead of abort. Blocks up to the default timeout.
   *  - DB_OK: *result is the new communicator.
   *  - negative: *result = NULL. DB_ERR_TIMEOUT: another remaining rank did not
   *    call; the communicator is FAILED. */
  db_status (*shrink)(db_communicator *, const int32_t *excluded,
                      uint64_t excluded_count, uint64_t flags,
                      db_communicator **result, db_error *error);
} db_shrink;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_SHRINK_H_ */
