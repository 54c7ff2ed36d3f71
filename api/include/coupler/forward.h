/*
 * coupler/forward.h: forwarding stubs for wrapper plugins, header-only C11.
 *
 * A wrapper (DB_CAP_NEEDS_BASE) changes some functions of a communicator and
 * forwards the others to its base. Copying the base's table would be wrong: its
 * functions would be called with the wrapper's communicator, and a base
 * compiled against an older header may have a shorter table. So each stub here
 * calls the base with the base's own communicator, and db_forward_init reads
 * only the fields that the base's table has. Usage:
 *
 *   typedef struct tracer {
 *     db_forward forward;      // first, so that the pointers are the same
 *     ...
 *   } tracer;
 *
 *   db_forward_init(&t->forward, base, tracer_destroy);
 *   t->forward.functions.submit = tracer_submit;   // changed by the wrapper
 *   *result = &t->forward.communicator;
 *
 * Three things are not forwarded:
 *  - destroy: the base is borrowed; the wrapper frees its own struct.
 *  - split: communicators returned by the base's split are not wrapped. A
 *    wrapper that offers split wraps the result (see examples/plugin_in_c).
 *  - get_extension: a wrapper must not pass on extensions it does not wrap.
 * Requests pass through unchanged: db_request pointers are the base's, and so
 * are test, wait_host, wait_stream and release. A wrapper that returns its own
 * requests replaces all four.
 *
 * Thread rules are those of coupler/distributed_backend.h; a db_forward does
 * not change after create has returned it.
 */
#ifndef COUPLER_FORWARD_H_
#define COUPLER_FORWARD_H_

#include <coupler/distributed_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator that forwards everything to another one. */
typedef struct db_forward {
  db_communicator communicator;        /* first: the host's pointer */
  db_communicator_functions functions; /* initially all forward */
  db_communicator *base; /* borrowed, or owned by the wrapper if split off */
} db_forward;

static inline const db_forward *db_forward_of(const db_communicator *wrapper) {
  return (const db_forward *)(const void *)wrapper;
}

static inline db_status db_forward_supports(const db_communicator *wrapper,
                                            const db_op *op, int32_t *score) {
  const db_communicator *base = db_forward_of(wrapper)->base;
  return base->functions->supports(base, op, score);
}

static inline db_status db_forward_submit(db_communicator *wrapper,
                                          const db_op *op, db_request **request,
                                          db_error *error) {
  db_communicator *base = db_forward_of(wrapper)->base;
  return base->functions->submit(base, op, request, error);
}

static inline db_status db_forward_async_error(const db_communicator *wrapper,
                                               db_error *error) {
  const db_communicator *base = db_forward_of(wrapper)->base;
  return base->functions->async_error(base, error);
}

static inline db_status db_forward_abort(db_communicator *wrapper) {
  db_communicator *base = db_forward_of(wrapper)->base;
  return base->functions->abort(base);
}

static inline const void *db_forward_get_extension(
    const db_communicator *wrapper, const char *id) {
  (void)wrapper;
  (void)id;
  return NULL; /* NOLINT(modernize-use-nullptr): C, too */
}

/* Whether the base can be split: its table has the field, and it is set. */
static inline int32_t db_forward_base_splits(const db_communicator *base) {
  return DB_HAS(base->functions, db_communicator_functions, split) &&
         base->functions->split != NULL; /* NOLINT(modernize-use-nullptr) */
}

/* Calls the base's split. *result is not wrapped; the wrapper owns and destroys
 * it. For wrappers that offer split. */
static inline db_status db_forward_split_base(db_communicator *wrapper,
                                              int32_t color, int32_t key,
                                              db_communicator **result,
                                              db_error *error) {
  db_communicator *base = db_forward_of(wrapper)->base;
  return base->functions->split(base, color, key, result, error);
}

/* Makes *forward forward everything to base. destroy is the wrapper's own. */
static inline void db_forward_init(db_forward *forward, db_communicator *base,
                                   void (*destroy)(db_communicator *)) {
  const db_communicator_functions *below = base->functions;
  db_communicator_functions *mine = &forward->functions;
  mine->struct_size = sizeof(*mine);
  mine->supports = db_forward_supports;
  mine->submit = db_forward_submit;
  mine->test = below->test;
  mine->wait_host = below->wait_host;
  mine->wait_stream = below->wait_stream; /* NULL: host memory only */
  mine->release = below->release;
  mine->split = NULL; /* NOLINT(modernize-use-nullptr) */
  mine->async_error = db_forward_async_error;
  mine->abort = db_forward_abort;
  mine->destroy = destroy;
  mine->get_extension = db_forward_get_extension;
  forward->communicator.struct_size = sizeof(forward->communicator);
  forward->communicator.functions = mine;
  forward->communicator.rank = base->rank;
  forward->communicator.size = base->size;
  forward->base = base;
}

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_FORWARD_H_ */
