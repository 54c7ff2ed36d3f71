/*
 * coupler/presets.h: the extension "coupler.presets/1". A draft: until the
 * interface is 1.0, it may change with a minor version.
 *
 * A backend that can be used in several ways (sharding strategies, stages) may
 * list them as presets: names for values of its options. Programs offer them to
 * users: `coupler config` asks which one to use, and `coupler estimate` and
 * `coupler config recommend` compare the memory that each of a sharding plugin
 * needs.
 *
 * A backend with presets returns a db_presets for DB_PRESETS from
 * DistributedBackend.get_extension. Everything is static and constant.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, arrays of pointers, append only, a zero in a field newer than you
 * means the behavior from before it existed.
 */
#ifndef COUPLER_PRESETS_H_
#define COUPLER_PRESETS_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_PRESETS "coupler.presets/1"

/* As the value of a string option: a folder on a local disk, which the user
 * names. */
#define DB_PRESET_FOLDER "{folder}"

#ifdef __cplusplus
extern "C" {
#endif

/* One way to use the backend. */
typedef struct db_preset {
  uint64_t struct_size;
  const char *name;        /* "ZeRO stage 2", unique among all backends */
  const char *description; /* a few words: "also shards gradients" */
  const db_option *const *options; /* their keys and values */
  uint64_t option_count;           /* of options */
  /* How long a step takes, in percent of a step of an unsharded model, to order
   * presets of all backends from fastest to slowest. 0: unknown; then a program
   * does not choose the preset by itself. */
  int32_t step_time;
  int32_t reserved; /* 0 */
} db_preset;

/* Returned by get_extension(DB_PRESETS) of a backend. If a user chooses a
 * preset, it replaces all values of options that any of the backend's presets
 * sets, and of those in the same tables ("offload." of "offload.device"). */
typedef struct db_presets {
  uint64_t struct_size;
  const db_preset *const *presets; /* in the order in which to offer them */
  uint64_t preset_count;           /* of presets */
} db_presets;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_PRESETS_H_ */
