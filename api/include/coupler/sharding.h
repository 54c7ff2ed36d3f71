/*
 * coupler/sharding.h: the extension "coupler.sharding/1".
 *
 * A sharding plugin decides how a model's parameters, gradients and optimizer
 * state are divided over ranks; the host acts. The host describes the model
 * (modules and parameters, names and shapes, no data), the plugin answers with
 * a plan, which is pure data: units, who owns which part of each parameter,
 * how long a gathered unit is kept, how its gradients are reduced, in which
 * types, how far ahead to gather. Tensors, autograd, optimizers and the
 * transfers themselves are the host's: it moves bytes with the plugin's own
 * communicator. So a sharding plugin is a few hundred lines and never sees a
 * tensor.
 *
 * It is an ordinary plugin with DB_CAP_NEEDS_BASE whose
 * DistributedBackend.get_extension answers DB_SHARDING with a db_sharding. Its
 * communicator usually passes everything on to the base
 * (coupler/forward.h), split included: the host splits it for the groups of
 * the plan. The base must have ALL_GATHER_V and REDUCE_SCATTER_V.
 *
 * The conventions are those of coupler/distributed_backend.h: struct_size
 * first, arrays of pointers, append only, a zero in a field newer than you
 * means the behaviour from before it existed.
 *
 * examples/plugin_in_c/c_round_robin is a complete one.
 */
#ifndef COUPLER_SHARDING_H_
#define COUPLER_SHARDING_H_

#include <coupler/distributed_backend.h>

/* The extension, for get_extension. */
#define DB_SHARDING "coupler.sharding/1"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The model, as the host describes it --------------------------------- */

/* One module. Modules are listed in order of registration, a parent before its
 * children; the first is the model itself. */
typedef struct db_module {
  uint64_t struct_size;
  const char *name; /* dotted path: "blocks.0.mlp"; "" the model itself */
  const char *type; /* as the framework names it: "torch::nn::LinearImpl" */
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
  int32_t trainable;     /* 0: frozen, has no gradient */
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

/* How long the gathered parameters of a unit stay. */
typedef int32_t db_keep;
enum {
  DB_KEEP_ALWAYS = 1, /* whole on every rank; gathered anew after each step of
                         the optimizer (ZeRO stages 1 and 2) */
  DB_KEEP_STEP = 2,   /* from the first use until the unit's gradients are
                         reduced (fsdp's shard_grad_op) */
  DB_KEEP_USE = 3     /* until other units need the room (ZeRO stage 3, fsdp's
                         full_shard): see db_plan.live_elements */
};

/* What every rank keeps of a unit's gradients between backward and step. */
typedef int32_t db_gradients;
enum {
  DB_GRADIENTS_WHOLE = 1, /* room for all of them (ZeRO stage 1) */
  DB_GRADIENTS_SHARD = 2  /* the part it owns; the rest lives while backward is
                             in the unit */
};

/* One parameter of a unit. Rank r of the group owns the elements
 * [bounds[r], bounds[r + 1]) of it, counted in row-major order; bounds has
 * (ranks of the group + 1) numbers, rises, begins with 0 and ends with the
 * parameter's number of elements. */
typedef struct db_unit_parameter {
  uint64_t struct_size;
  uint64_t parameter;     /* index in db_model.parameters */
  const uint64_t *bounds; /* as above */
} db_unit_parameter;

/* Parameters that are gathered, released and reduced together. The order of its
 * parameters is theirs in memory: parts of one rank that follow each other
 * travel as one. Parameters of one unit must have the same dtype. */
typedef struct db_unit {
  uint64_t struct_size;
  const char *name;                           /* for messages: "blocks.0" */
  const db_unit_parameter *const *parameters; /* in order of memory */
  uint64_t parameter_count;                   /* of parameters */
  db_keep keep;                               /* how long they stay gathered */
  db_gradients gradients;                     /* what is kept of theirs */
  /* compute_dtype: what operations see, and what is gathered (0: the
   * parameter's own type); the owned part stays in the parameter's type.
   * reduce_dtype: in which gradients travel (0: compute_dtype). output_dtype:
   * what floating-point results of operations on the unit are converted to (0:
   * left as they are). */
  db_dtype compute_dtype;
  db_dtype reduce_dtype; /* see compute_dtype */
  db_dtype output_dtype; /* see compute_dtype */
  int32_t reserved;      /* 0 */
} db_unit;

/* Where state is while nothing uses it. */
typedef int32_t db_place;
enum {
  DB_PLACE_STAY = 0, /* where it is used */
  DB_PLACE_HOST = 1, /* in host memory, which with a model on the CPU is where
                        it is anyway */
  DB_PLACE_DISK = 2  /* in a file: in memory only while it is used, and a while
                        ahead */
};

/* Where a rank keeps its parts between uses. */
typedef struct db_offload {
  uint64_t struct_size;
  db_place place;     /* which of them */
  int32_t pinned;     /* DB_PLACE_HOST: 1 in page-locked memory, 0 not */
  const char *folder; /* DB_PLACE_DISK: in which files are made, which are gone
                         with the process; NULL otherwise */
  int32_t buffers;    /* DB_PLACE_DISK: blocks that are read ahead, and as many
                         that wait to be written */
  int32_t reserved;   /* 0 */
} db_offload;

/* The plan of one rank. Owned by the plugin; the host gives it back by
 * db_sharding.release when it has taken what it needs. Group and bounds must be
 * the same on every rank of a group, everything else on every rank: the host
 * compares them through the store. */
typedef struct db_plan {
  uint64_t struct_size;
  const db_unit *const *units; /* a parameter in no unit is replicated: whole on
                                  every rank, its gradient averaged */
  uint64_t unit_count;         /* of units */
  /* Ranks with the same number share one copy of the parameters, ranked in
   * order; copies are averaged across groups. All groups must have the same
   * size. 0 on every rank: one group of all. */
  int32_t group;
  /* How many units are gathered ahead of use, in the order learnt in the first
   * step; 0: none. */
  int32_t prefetch;
  /* Elements of DB_KEEP_USE units that may be resident on a rank at a time, the
   * unit in use and those prefetched always included; 0: those only. */
  uint64_t live_elements;
  /* Bytes of gradient that are collected before they are reduced, for
   * DB_KEEP_ALWAYS units and replicated parameters; 0: the host's choice. */
  uint64_t reduce_bytes;
  /* Whether reductions run beside backward: 1, 0, or -1 for the host's choice,
   * which measures. */
  int32_t overlap;
  int32_t reserved; /* 0 */
  /* Of what this rank owns: the optimizer's state, with it the gradients that
   * units keep as a shard; and the parameters of units that are not
   * DB_KEEP_ALWAYS. NULL: they stay. */
  const db_offload *offload_optimizer;
  const db_offload *offload_parameters; /* likewise */
} db_plan;

/* What get_extension(DB_SHARDING) of the plugin returns; static. */
typedef struct db_sharding {
  uint64_t struct_size;

  /* [any-thread] The plan for model on this rank of communicator, which is one
   * that create of this plugin made, with the options given there. No
   * communication; deterministic. *plan = NULL on error: an option that this
   * model cannot have (a group size that does not divide the world, a unit name
   * that matches nothing) is DB_ERR_INVALID_ARGUMENT with the values that can
   * be had. */
  db_status (*plan)(const db_communicator *communicator, const db_model *model,
                    const db_plan **plan, db_error *error);

  /* [any-thread] Frees a plan; exactly once. */
  void (*release)(const db_plan *plan);
} db_sharding;

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_SHARDING_H_ */
