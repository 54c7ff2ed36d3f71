/*
 * coupler/sharding.h: the extension "coupler.sharding/1".
 *
 * A sharding plugin decides how a model's parameters, gradients and optimizer
 * state are sharded over ranks; the host does the work. The host describes the
 * model (modules and parameters, names and shapes, no data), and the plugin
 * returns a plan, which is pure data: units, which rank owns which part of each
 * parameter, how long a gathered unit is kept, how and in which dtypes its
 * gradients are reduced, how far ahead to gather. The host handles tensors,
 * autograd, optimizers and transfers, using the plugin's own communicator. So a
 * sharding plugin is a few hundred lines and never sees a tensor.
 *
 * It is an ordinary plugin with DB_CAP_NEEDS_BASE whose
 * DistributedBackend.get_extension returns a db_sharding for DB_SHARDING. Its
 * communicator usually forwards everything to the base (coupler/forward.h),
 * including split: the host splits it for the groups of the plan. The base must
 * support ALL_GATHER_V and REDUCE_SCATTER_V.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, arrays of pointers, append only, a zero in a field newer than you
 * means the behavior from before it existed.
 *
 * examples/plugin_in_c/c_round_robin is a complete example.
 */
#ifndef COUPLER_SHARDING_H_
#define COUPLER_SHARDING_H_

#include <coupler/distributed_backend.h>

/* The id for get_extension. */
#define DB_SHARDING "coupler.sharding/1"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The model, as the host describes it --------------------------------- */

/* One module. Modules are listed in order of registration, a parent before its
 * children; the first is the model itself. */
typedef struct db_module {
  uint64_t struct_size;
  const char *name; /* dotted path: "blocks.0.mlp"; "": the model itself */
  const char *type; /* the framework's name: "torch::nn::LinearImpl" */
  int64_t parent;   /* index of the module it is registered in; -1: none */
} db_module;

/* One parameter, listed in order of registration. A tied parameter (registered
 * several times) is listed once, under its first name. */
typedef struct db_parameter {
  uint64_t struct_size;
  const char *name;      /* dotted path: "blocks.0.mlp.weight" */
  uint64_t module;       /* index of the module that registers it */
  const uint64_t *sizes; /* of each dimension */
  uint32_t dimensions;   /* 0: a scalar */
  db_dtype dtype;        /* of its elements */
  int32_t trainable;     /* 0: frozen, without a gradient */
  int32_t reserved;      /* 0 */
} db_parameter;

/* Valid until plan returns. */
typedef struct db_model {
  uint64_t struct_size;
  const db_module *const *modules;       /* in order of registration */
  uint64_t module_count;                 /* of modules */
  const db_parameter *const *parameters; /* in order of registration */
  uint64_t parameter_count;              /* of parameters */
} db_model;

/* ---- The plan ------------------------------------------------------------ */

/* How long the gathered parameters of a unit are kept. */
typedef int32_t db_keep;
enum {
  DB_KEEP_ALWAYS = 1, /* full on every rank; gathered again after each
                         optimizer step (ZeRO stages 1 and 2) */
  DB_KEEP_STEP = 2,   /* from the first use until the unit's gradients are
                         reduced (fsdp's shard_grad_op) */
  DB_KEEP_USE = 3     /* until other units need the room (ZeRO stage 3, fsdp's
                         full_shard): see db_plan.live_elements */
};

/* What each rank keeps of a unit's gradients between backward and step. */
typedef int32_t db_gradients;
enum {
  DB_GRADIENTS_WHOLE = 1, /* the full gradients (ZeRO stage 1) */
  DB_GRADIENTS_SHARD = 2  /* its own shard; the rest exists only while backward
                             is in the unit */
};

/* One parameter of a unit. Rank r of the group owns the elements
 * [bounds[r], bounds[r + 1]) of it, counted in row-major order. bounds has
 * (ranks of the group + 1) nondecreasing numbers, from 0 to the parameter's
 * number of elements. */
typedef struct db_unit_parameter {
  uint64_t struct_size;
  uint64_t parameter;     /* index in db_model.parameters */
  const uint64_t *bounds; /* as above */
} db_unit_parameter;

/* Parameters that are gathered, released and reduced together. Their order is
 * the order in memory: adjacent parts of one rank are transferred together.
 * Parameters of one unit must have the same dtype. */
typedef struct db_unit {
  uint64_t struct_size;
  const char *name;                           /* for messages: "blocks.0" */
  const db_unit_parameter *const *parameters; /* in memory order */
  uint64_t parameter_count;                   /* of parameters */
  db_keep keep;                               /* how long they stay gathered */
  db_gradients gradients;                     /* what is kept of gradients */
  /* compute_dtype: the dtype that is gathered and used by operations (0: the
   * parameter's own dtype); the owned shard keeps the parameter's dtype.
   * reduce_dtype: the dtype in which gradients are transferred (0:
   * compute_dtype). output_dtype: the dtype to which floating-point results of
   * operations on the unit are converted (0: not converted). */
  db_dtype compute_dtype;
  db_dtype reduce_dtype; /* see compute_dtype */
  db_dtype output_dtype; /* see compute_dtype */
  int32_t reserved;      /* 0 */
} db_unit;

/* Where unused state is kept. */
typedef int32_t db_place;
enum {
  DB_PLACE_STAY = 0, /* on the device where it is used */
  DB_PLACE_HOST = 1, /* in host memory; no effect for a model on the CPU */
  DB_PLACE_DISK = 2  /* in a file; in memory only while it is used and shortly
                        before */
};

/* Where a rank keeps its shards between uses. */
typedef struct db_offload {
  uint64_t struct_size;
  db_place place;     /* the kind of place */
  int32_t pinned;     /* DB_PLACE_HOST: whether in page-locked memory */
  const char *folder; /* DB_PLACE_DISK: the folder of the files, which are
                         removed with the process; otherwise NULL */
  int32_t buffers;    /* DB_PLACE_DISK: number of blocks that are read ahead,
                         and of blocks that wait to be written */
  int32_t reserved;   /* 0 */
} db_offload;

/* The plan of one rank. Owned by the plugin; the host returns it through
 * db_sharding.release when it is done with it. Group and bounds must be the
 * same on every rank of a group, everything else on every rank: the host
 * compares them through the store. */
typedef struct db_plan {
  uint64_t struct_size;
  const db_unit *const *units; /* a parameter in no unit is replicated: full on
                                  every rank, its gradient averaged */
  uint64_t unit_count;         /* of units */
  /* Ranks with the same number share one copy of the parameters, in rank order;
   * gradients are averaged across groups. All groups must have the same size. 0
   * on every rank: one group of all ranks. */
  int32_t group;
  /* How many units are gathered ahead of use, in the order recorded in the
   * first step; 0: none. */
  int32_t prefetch;
  /* Maximum number of elements of DB_KEEP_USE units resident on a rank at a
   * time. The unit in use and prefetched units are always allowed; 0: only
   * those. */
  uint64_t live_elements;
  /* Bytes of gradients collected before they are reduced, for DB_KEEP_ALWAYS
   * units and replicated parameters; 0: the host chooses. */
  uint64_t reduce_bytes;
  /* Whether reductions overlap with backward: 1, 0, or -1 to let the host
   * choose by measurement. */
  int32_t overlap;
  int32_t reserved; /* 0 */
  /* Offloading of what this rank owns: optimizer state, together with gradients
   * that units keep as a shard; and parameters of units that are not
   * DB_KEEP_ALWAYS. NULL: not offloaded. */
  const db_offload *offload_optimizer;
  const db_offload *offload_parameters; /* see offload_optimizer */
} db_plan;

/* Returned by get_extension(DB_SHARDING) of the plugin; static. */
typedef struct db_sharding {
  uint64_t struct_size;

  /* [any-thread] Makes the plan for model on this rank of communicator, which
   * create of this plugin made, with the options given there. Deterministic;
   * must not communicate. *plan = NULL on error. An option that does not suit
   * the model (a group size that does not divide the world size, a unit name
   * that matches nothing) is DB_ERR_INVALID_ARGUMENT; the message names the
   * possible values. */
  db_status (*plan)(const db_communicator *communicator, const db_model *model,
                    const db_plan **plan, db_error *error);

  /* [any-thread] Frees a plan; exactly once. */
  void (*release)(const db_plan *plan);
} db_sharding;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_SHARDING_H_ */
