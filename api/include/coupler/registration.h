/*
 * coupler/registration.h: the extension "coupler.registration/1".
 *
 * A transport that can move registered memory faster (without a copy through
 * its own buffers, or directly by the network card) returns a db_registration
 * for DB_REGISTRATION from get_extension of its communicators
 * (db_communicator_functions, not DistributedBackend). Registration pays off
 * for memory that is sent or received repeatedly, such as the flat memory of
 * gradients. It affects only speed, never results.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, append only, a zero in a field newer than you means the behavior
 * from before it existed.
 */
#ifndef COUPLER_REGISTRATION_H_
#define COUPLER_REGISTRATION_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_REGISTRATION "coupler.registration/1"

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by get_extension(DB_REGISTRATION) of a communicator. */
typedef struct db_registration {
  uint64_t struct_size;

  /* [comm-serial] Registers bytes at buffer; *handle is for remove. Local, but
   * effective only if every rank registers its part of the same operations. The
   * memory must stay allocated until remove or destroy. On a FAILED
   * communicator, returns the error that made it FAILED. */
  db_status (*add)(db_communicator *, void *buffer, uint64_t bytes,
                   void **handle, db_error *error);

  /* [comm-serial] Call it before the memory is freed, while no operation on it
   * is pending. Returns DB_OK on a FAILED communicator, which has already
   * released all registrations. */
  db_status (*remove)(db_communicator *, void *handle, db_error *error);
} db_registration;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_REGISTRATION_H_ */
