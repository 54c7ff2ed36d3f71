/*
 * coupler/memory.h: the extension "coupler.memory/1" (optional, a draft).
 *
 * A transport whose ranks can reach each other's memory returns a
 * db_peer_memory for DB_PEER_MEMORY from get_extension of its communicators
 * (db_communicator_functions, not DistributedBackend). What it allocates, other
 * ranks of the communicator can read and write: all of them, or those of its
 * machine. The host keeps there what is sent again and again, such as flat
 * gradients. An operation with all buffers in such memory on every rank may
 * then need fewer copies through the transport's own buffers. It affects only
 * speed, never results. A rank without such neighbors may have no extension
 * although others have it.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, append only, a zero in a field newer than you means the behavior
 * from before it existed.
 */
#ifndef COUPLER_MEMORY_H_
#define COUPLER_MEMORY_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_PEER_MEMORY "coupler.memory/1"

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by get_extension(DB_PEER_MEMORY) of a communicator; lives as long as
 * the communicator. */
typedef struct db_peer_memory {
  uint64_t struct_size;

  /* [any-thread] *memory: at least bytes (> 0) of zeros, aligned to at least 64
   * bytes; *handle is for release. Not collective: ranks may allocate
   * different sizes at different times, or nothing. If it succeeds, the memory
   * is there: writing to it does not fail later because there is too little.
   * On any error nothing is allocated, the communicator is as before, and the
   * caller uses memory of its own. On a FAILED communicator, returns the error
   * that made it FAILED.
   *
   * The memory serves operations of this communicator, not of those that split
   * or shrink make from it; there, and in operations of which another rank's
   * buffers are elsewhere, it is memory like any other. It does not end with
   * the communicator: after destroy it remains valid until release.
   *
   * Until an operation is complete on a rank, peers read its send and write its
   * recv. If it fails there, a peer that was late may do so even later: then
   * what recv holds is unspecified until its memory is released, whatever the
   * rank writes to it. So a program that continues without the communicator
   * takes new memory. Processes that a rank forks share the memory with it. */
  db_status (*allocate)(db_communicator *, uint64_t bytes, void **memory,
                        void **handle, db_error *error);

  /* [any-thread] Frees the memory; once for each handle, while no operation on
   * it is pending. Also legal after destroy of the communicator, so keep this
   * pointer for as long as the memory. */
  void (*release)(void *handle);
} db_peer_memory;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_MEMORY_H_ */
