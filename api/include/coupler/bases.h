/*
 * coupler/bases.h: the extension "coupler.bases/1". A draft: until the
 * interface is 1.0, it may change with a minor version.
 *
 * A wrapper or sharding plugin (DB_CAP_NEEDS_BASE) stands on one base, of role
 * "world". A backend that composes several transports lists them here, one for
 * each role, and create gets a db_base for each. Which backend serves a role is
 * the user's choice: the option of that name in the backend's own table.
 *
 *   [backend.two_rails]       # roles "first" and "second"
 *   first = "gloo_cpu"
 *   second = "/opt/lib/libcoupler_fabric.so"
 *
 * The host consumes these options, as it does "base"; they are not in
 * default_options. A base's own options are in its own table.
 *
 * The host creates the bases in the order of the list, before create, on every
 * rank that a base has, each with store keys of its own. A base of this list
 * must be a transport. The backend itself may be the base of a wrapper or
 * sharding plugin without this extension; deeper nesting is refused.
 *
 * Such a backend returns a db_wanted_bases for DB_BASES from
 * DistributedBackend.get_extension, and sets DB_CAP_NEEDS_BASE. Everything is
 * static and constant.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, arrays of pointers, append only, a zero in a field newer than you
 * means the behavior from before it existed.
 */
#ifndef COUPLER_BASES_H_
#define COUPLER_BASES_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_BASES "coupler.bases/1"

#ifdef __cplusplus
extern "C" {
#endif

/* Which ranks a base connects. */
typedef int32_t db_base_ranks;
enum {
  DB_BASE_WORLD = 1,  /* all, with the ranks of the communicator itself */
  DB_BASE_MACHINE = 2 /* those of this rank's machine, as local_rank and
                         local_size of its params; its only rank is 0 of 1 if
                         the machine has no other */
};

/* One base that the backend wants. */
typedef struct db_wanted_base {
  uint64_t struct_size;
  const char *role;        /* of the db_base, and the option: "local" */
  const char *otherwise;   /* the backend if the option is not set; NULL: the
                              transport that "auto" picks */
  const char *description; /* one sentence, of the option */
  db_base_ranks ranks;     /* which ranks it connects */
  int32_t reserved;        /* 0 */
} db_wanted_base;

/* Returned by get_extension(DB_BASES) of a backend. */
typedef struct db_wanted_bases {
  uint64_t struct_size;
  const db_wanted_base *const *bases; /* in the order in which to create them */
  uint64_t base_count;                /* of bases; at least 1 */
} db_wanted_bases;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_BASES_H_ */
