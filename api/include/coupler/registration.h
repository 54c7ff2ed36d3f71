/*
 * coupler/registration.h: the extension "coupler.registration/1".
 *
 * A transport that moves some memory faster once it knows it (without a copy
 * through buffers of its own, or by the network card itself) answers
 * DB_REGISTRATION to get_extension of its communicators
 * (db_communicator_functions, not DistributedBackend) with a db_registration.
 * It pays for what is sent or received again and again, as the flat memory of
 * gradients is. It never changes a result, only the time.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, append only, a zero in a field newer than you means the behaviour
 * from before it existed.
 */
#ifndef COUPLER_REGISTRATION_H_
#define COUPLER_REGISTRATION_H_

#include <coupler/distributed_backend.h>

/* The extension, for get_extension. */
#define DB_REGISTRATION "coupler.registration/1"

#ifdef __cplusplus
extern "C" {
#endif

/* What get_extension(DB_REGISTRATION) of a communicator returns. */
typedef struct db_registration {
  uint64_t struct_size;

  /* [comm-serial] Makes bytes at buffer known; *handle is for remove. Local,
   * but pays only where every rank registers its part of the same operations.
   * The memory must stay allocated until remove or destroy. On a communicator
   * that is FAILED: the error that made it so. */
  db_status (*add)(db_communicator *, void *buffer, uint64_t bytes,
                   void **handle, db_error *error);

  /* [comm-serial] Before the memory is freed, with no operation on it pending.
   * DB_OK on a communicator that is FAILED, which has let go of all. */
  db_status (*remove)(db_communicator *, void *handle, db_error *error);
} db_registration;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_REGISTRATION_H_ */
