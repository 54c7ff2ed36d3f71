/*
 * coupler/distributed_backend.h: the C interface between Coupler and a backend.
 *
 * A backend is a shared library that exports one function,
 * coupler_distributed_backend_v1, which returns a pointer to a static
 * DistributedBackend table. The host (libcoupler, the coupler program, or any
 * other program) loads the library, asks it whether it can work here (probe),
 * and creates communicators from it (create). All transfers go through one
 * function, submit, so a wrapper has to wrap only one function. See
 * docs/write-a-plugin.md for a walk-through.
 *
 * Conventions of this file
 *  - C11, stdint.h and stddef.h only. The layout has no implicit padding.
 *  - Every struct that crosses the interface begins with struct_size, which the
 *    side that fills in the struct sets to sizeof the struct *as compiled*. A
 *    reader may use a field only if DB_HAS() is true for it.
 *  - Append only. A zero or NULL in a field that is newer than you means the
 *    behavior from before that field existed.
 *  - [any-thread]   may be called at any time from any thread.
 *    [comm-serial]  the caller ensures that calls on one communicator do not
 *                   overlap; different communicators are independent.
 *  - Exceptions and longjmp must not cross a function of this file.
 *  - The host never unloads a backend.
 *  - Strings are UTF-8, end in a zero byte, and belong to the caller; a callee
 *    that wants to keep one copies it. Static tables and the strings in them
 *    live as long as the process.
 *
 * States of a communicator: ACTIVE -> FAILED -> (abort) ABORTED -> destroyed.
 * An error with DB_ERROR_COMM_DEAD makes it FAILED: from then on only
 * async_error, abort, destroy and release of pending requests are legal;
 * anything else returns DB_ERR_ABORTED or the first error again. A timeout is
 * detected locally and makes the communicator FAILED.
 */
#ifndef COUPLER_DISTRIBUTED_BACKEND_H_
#define COUPLER_DISTRIBUTED_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

/* The version of this header. While major is 0, a minor version may break
 * compatibility; api/CHANGELOG.md has the history. Each major version has its
 * own entry symbol (0.x and 1.x share ..._v1). */
#define DB_ABI_MAJOR 0u
#define DB_ABI_MINOR 1u /* see DB_ABI_MAJOR */

/* The symbol that the host looks up with dlsym; see db_entry_function. */
#define DB_ENTRY_SYMBOL "coupler_distributed_backend_v1"

/* Put this before the definition of the entry function. Build everything else
 * with -fvisibility=hidden, so that it is the only exported symbol. */
#define DB_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Whether *p, filled in by the other side, is long enough to hold a field. */
#define DB_HAS(p, type, field) \
  ((p)->struct_size >= offsetof(type, field) + sizeof(((type *)0)->field))

/* ---- Numbers. They are stored in int32_t fields; new ones are appended. -- */

/* The status returned by functions; 0 and above are not errors. */
typedef int32_t db_status;
enum {
  DB_OK = 0,                    /* done */
  DB_IN_PROGRESS = 1,           /* not an error: the request is not complete */
  DB_ERR_INVALID_ARGUMENT = -1, /* the caller's mistake, detected locally */
  DB_ERR_UNSUPPORTED = -2,      /* this backend never does that */
  DB_ERR_TIMEOUT = -3,   /* the deadline passed; the communicator is FAILED */
  DB_ERR_ABORTED = -4,   /* abort was called, or an earlier error persists */
  DB_ERR_PEER_LOST = -5, /* failed_rank died or its connection broke */
  DB_ERR_NOT_FOUND = -6, /* a store key, a file, a device */
  DB_ERR_NO_MEMORY = -7, /* of the host or a device */
  DB_ERR_SYSTEM = -8,    /* the operating system; native_code = errno */
  DB_ERR_INTERNAL = -9,  /* a bug in the backend or its library */
  DB_ERR_UNKNOWN_OPTION = -10,   /* message names it and the known options */
  DB_ERR_BUFFER_TOO_SMALL = -11, /* the required size was written back */
  DB_ERR_MISMATCH = -12 /* ranks disagreed on operation, type or size */
};

/* DLPack (code, bits) in parentheses. DB_BOOL is one byte, 0 or 1. Every
 * transport moves the fp8 types; only those supports() accepts are reduced. */
typedef int32_t db_dtype;
enum {
  DB_I8 = 1,    /* (int, 8) */
  DB_U8 = 2,    /* (uint, 8) */
  DB_I16 = 3,   /* (int, 16) */
  DB_U16 = 4,   /* (uint, 16) */
  DB_I32 = 5,   /* (int, 32) */
  DB_U32 = 6,   /* (uint, 32) */
  DB_I64 = 7,   /* (int, 64) */
  DB_U64 = 8,   /* (uint, 64) */
  DB_F16 = 9,   /* (float, 16) */
  DB_BF16 = 10, /* (bfloat, 16) */
  DB_F32 = 11,  /* (float, 32) */
  DB_F64 = 12,  /* (float, 64) */
  DB_BOOL = 13, /* (bool, 8) */
  DB_F8_E4M3FN = 14,
  DB_F8_E5M2 = 15
};

/* Integers wrap around. f16 and bf16 are combined in f32 and rounded to
 * nearest-even, at each step or once at the end. For DB_BOOL, SUM and MAX are
 * "or", PROD and MIN are "and", the bitwise reductions act on 0/1, and AVG and
 * PREMUL_SUM are not defined. AVG and PREMUL_SUM are defined for floating-point
 * types; AVG is also defined for integers and truncates toward zero. The
 * bitwise reductions are defined for integers and DB_BOOL. */
typedef int32_t db_reduce;
enum {
  DB_SUM = 1,
  DB_PROD = 2,
  DB_MIN = 3,
  DB_MAX = 4,
  DB_AVG = 5,        /* sum / number of ranks */
  DB_PREMUL_SUM = 6, /* sum of scale * contribution, scale from db_op.scale */
  DB_BAND = 7,
  DB_BOR = 8,
  DB_BXOR = 9
};

/* The values of db_op.kind; db_op describes the buffers of each. */
typedef int32_t db_kind;
enum {
  DB_ALL_REDUCE = 1,
  DB_BROADCAST = 2,
  DB_REDUCE = 3,
  DB_ALL_GATHER = 4,
  DB_ALL_GATHER_V = 5,
  DB_REDUCE_SCATTER = 6,
  DB_REDUCE_SCATTER_V = 7,
  DB_ALL_TO_ALL = 8,
  DB_ALL_TO_ALL_V = 9,
  DB_GATHER = 10,
  DB_SCATTER = 11,
  DB_BARRIER = 12,
  DB_SEND = 13,
  DB_RECV = 14
};

/* The memory in which the buffers of an operation are. */
typedef int32_t db_memory;
enum { DB_MEMORY_HOST = 1, DB_MEMORY_HOST_PINNED = 2, DB_MEMORY_CUDA = 3 };

/* The severity of a log line, in increasing order. */
typedef int32_t db_severity;
enum {
  DB_LOG_TRACE = 0,
  DB_LOG_DEBUG = 1,
  DB_LOG_INFO = 2,
  DB_LOG_WARNING = 3,
  DB_LOG_ERROR = 4
};

/* ---- Errors -------------------------------------------------------------- */

/* Flags of db_error. */
enum {
  DB_ERROR_RETRYABLE = 1u << 0, /* the same call may succeed later */
  DB_ERROR_COMM_DEAD = 1u << 1, /* the communicator is FAILED from now on */
  DB_ERROR_REMOTE = 1u << 2     /* another rank detected it first */
};

/* Filled in by the callee when it returns a negative status; not touched
 * otherwise. The caller owns all memory, including the message buffer, so
 * nothing has to be freed and each thread can use its own. A db_error *
 * argument may be NULL: then only the status is returned. */
typedef struct db_error {
  uint64_t struct_size;
  db_status code;      /* the returned status */
  int32_t native_code; /* errno, MPI error class, ncclResult_t; 0: none */
  int32_t failed_rank; /* the rank at fault; -1: unknown or none */
  uint32_t flags;      /* DB_ERROR_* */
  char *message;       /* caller's buffer or NULL; always ends in a zero byte */
  uint64_t message_capacity; /* size of the buffer at message, in bytes */
} db_error;

/* ---- Options ------------------------------------------------------------- */

/* Which field of a db_option holds its value. */
typedef int32_t db_option_type;
enum {
  DB_OPTION_STRING = 1,
  DB_OPTION_I64 = 2,
  DB_OPTION_F64 = 3,
  DB_OPTION_BOOL = 4
};

/* One option. As a default (default_options) it also documents the option.
 * Array elements are pointers, so that the struct can grow. */
typedef struct db_option {
  uint64_t struct_size;
  const char *key;         /* dotted path in the plugin's table: "pair.mode" */
  db_option_type type;     /* which of the next four fields is valid */
  int32_t boolean;         /* 0 or 1 */
  int64_t i64;             /* DB_OPTION_I64 */
  double f64;              /* DB_OPTION_F64 */
  const char *string;      /* DB_OPTION_STRING; never NULL */
  const char *description; /* one sentence in defaults, otherwise NULL */
} db_option;

/* ---- What the host provides ---------------------------------------------- */

/* A key-value store shared by all ranks of one communicator, for bootstrap.
 * Keys are prefixed per communicator, so any name may be used. Keys are at most
 * 1,024 bytes, values 8 MiB. Valid until the communicator is destroyed. Every
 * function is [any-thread]. timeout_ns: 0 polls once, negative means the
 * communicator's default timeout. */
typedef struct db_store {
  uint64_t struct_size;
  void *context; /* the first argument of each function */
  /* Sets key to size bytes at value. */
  db_status (*set)(void *context, const char *key, const void *value,
                   uint64_t size, db_error *error);
  /* Waits until the key is set. *size: in, the capacity of value; out, the size
   * of the value. If the capacity is too small, returns
   * DB_ERR_BUFFER_TOO_SMALL and copies nothing. */
  db_status (*get)(void *context, const char *key, void *value, uint64_t *size,
                   int64_t timeout_ns, db_error *error);
  /* Adds delta to the number under key (initially 0) and returns the sum. These
   * keys are separate from those of set and get. */
  db_status (*add)(void *context, const char *key, int64_t delta,
                   int64_t *result, db_error *error);
  /* Optional (NULL: the host has no secret). Writes a 32-byte key that only
   * processes of the job can compute, and all compute alike: HKDF-SHA256 of the
   * job's secret for this purpose. It is never transmitted, so a backend can
   * use it to authenticate its connections. purpose has at most 128 bytes;
   * returns DB_ERR_UNSUPPORTED if this job has no secret. */
  db_status (*derive_key)(void *context, const char *purpose, uint8_t key[32],
                          db_error *error);
} db_store;

/* Valid for the whole process. Every function is [any-thread]. */
typedef struct db_host {
  uint64_t struct_size;
  uint32_t abi_major; /* of the host */
  uint32_t abi_minor; /* of the host */
  void *context;      /* the first argument of each function */
  /* Writes a line if the log level of component permits it. */
  void (*log)(void *context, db_severity severity, const char *component,
              const char *message);
  /* Returns an extension of the host by id, NULL if unknown. May be NULL. */
  const void *(*get_extension)(void *context, const char *id);
} db_host;

/* ---- Operations ---------------------------------------------------------- */

/* Flags of db_op. */
enum {
  /* The caller will wait immediately: the backend may run the operation inside
   * submit on the calling thread, which saves a thread switch. */
  DB_OP_BLOCKING = 1u << 0
};

/* clang-format off: a table follows */
/*
 * One collective or point-to-point operation. W is the number of ranks, r this
 * rank, root the rank in root_or_peer. Counts are in elements of dtype.
 *
 *   kind              send               recv               count
 *   ALL_REDUCE        count              count              the same on all
 *   BROADCAST         count on root      count              the same on all
 *   REDUCE            count              count on root      the same on all
 *   ALL_GATHER        count              W*count, by rank   the same on all
 *   ALL_GATHER_V      recv_counts[r]     sum(recv_counts)   -
 *   REDUCE_SCATTER    W*count, by rank   count              the same on all
 *   REDUCE_SCATTER_V  sum(recv_counts)   recv_counts[r]     -
 *   ALL_TO_ALL        W*count, by rank   W*count, by rank   the same on all
 *   ALL_TO_ALL_V      sum(send_counts)   sum(recv_counts)   -
 *   GATHER            count              W*count on root    the same on all
 *   SCATTER           W*count on root    count              the same on all
 *   BARRIER           -                  -                  0
 *   SEND              count, to peer     -                  the receiver's
 *   RECV              -                  count, from peer   the sender's
 *
 * recv_counts and send_counts hold W numbers; the V kinds that use only one
 * array need the same array on every rank. Parts are contiguous, in rank order.
 *
 * In place. ALL_REDUCE, BROADCAST and REDUCE: send == recv. ALL_GATHER(_V) and
 * GATHER: send is this rank's part of recv. REDUCE_SCATTER(_V) and SCATTER:
 * recv is this rank's part of send. ALL_TO_ALL(_V): send == recv, and for the V
 * kind both count arrays are equal. Otherwise the buffers must not overlap. If
 * a rank has no send (or recv) in the table, the pointer is ignored. A pointer
 * may be NULL if its length is zero.
 *
 * Buffers must be aligned to the size of dtype. Until the request is complete
 * they must stay valid, send must not be modified, and recv must not be
 * accessed. The struct itself and the count arrays are read only during submit.
 */
/* clang-format on */
typedef struct db_op {
  uint64_t struct_size;
  db_kind kind;                /* the operation */
  db_dtype dtype;              /* of the elements */
  db_reduce reduce;            /* for reducing kinds; otherwise 0 */
  int32_t root_or_peer;        /* a rank; 0 if not used */
  const void *send;            /* see the table above */
  void *recv;                  /* see the table above */
  uint64_t count;              /* in elements; see the table above */
  const uint64_t *send_counts; /* by rank, for V kinds; otherwise NULL */
  const uint64_t *recv_counts; /* by rank, for V kinds; otherwise NULL */
  db_memory memory;            /* of both buffers */
  int32_t tag;        /* SEND and RECV: matched exactly; 0 .. 2^15 - 1 */
  uint64_t flags;     /* DB_OP_* */
  void *stream;       /* cudaStream_t that produced send; NULL on the host */
  int64_t timeout_ns; /* from submit; 0: the communicator's default */
  double scale;       /* PREMUL_SUM */
} db_op;

/* Opaque; created by submit, owned by the backend, returned by release. */
typedef struct db_request db_request;

/* Both sides know its first part; see below. */
typedef struct db_communicator db_communicator;

/* The functions of a communicator. All are required unless marked optional.
 * The table and the communicator are created by create (or split) and live
 * until destroy. test, wait_host, wait_stream and release are called with
 * requests returned by submit of the same table. */
typedef struct db_communicator_functions {
  uint64_t struct_size;

  /* [any-thread] *score = 0: op is not supported (and submit would refuse it
   * with DB_ERR_UNSUPPORTED); 1: supported; higher: natively fast. Depends only
   * on kind, dtype, reduce, memory and count. Exact; the same on every rank. */
  db_status (*supports)(const db_communicator *, const db_op *op,
                        int32_t *score);

  /* [comm-serial] Starts op. Operations of one communicator start in the order
   * of submit, which must be the same on every rank (for SEND and RECV, on the
   * two peers). May block only with DB_OP_BLOCKING.
   *  - DB_OK: already complete, *request = NULL.
   *  - DB_IN_PROGRESS: the caller waits for *request and releases it.
   *  - negative: nothing was started, *request = NULL. */
  db_status (*submit)(db_communicator *, const db_op *op, db_request **request,
                      db_error *error);

  /* [any-thread] Never blocks. Returns DB_OK, DB_IN_PROGRESS, or the error of
   * the operation (the same at every call). */
  db_status (*test)(db_request *, db_error *error);

  /* [any-thread] Blocks the calling thread until the request is complete. After
   * timeout_ns (negative: the operation's own deadline applies) it returns
   * DB_ERR_TIMEOUT without affecting the operation. */
  db_status (*wait_host)(db_request *, int64_t timeout_ns, db_error *error);

  /* [any-thread] Optional (NULL: host memory only). Makes later work on stream
   * (cudaStream_t) wait for the request; returns immediately. */
  db_status (*wait_stream)(db_request *, void *stream, db_error *error);

  /* [any-thread] Returns the request to the backend. Called exactly once, at
   * any time: an incomplete operation continues, and its buffers must stay
   * valid until it is complete. */
  void (*release)(db_request *);

  /* [comm-serial] Optional (NULL: no DB_CAP_SPLIT). Collective over all ranks
   * of the communicator. Ranks with the same color >= 0 form a communicator,
   * ranked by key, then by old rank; ranks with a negative color get none
   * (*result = NULL). Blocks up to the default timeout. The result is
   * independent of the parent and may outlive it. */
  db_status (*split)(db_communicator *, int32_t color, int32_t key,
                     db_communicator **result, db_error *error);

  /* [any-thread] Returns DB_OK, or the error that made it FAILED. */
  db_status (*async_error)(const db_communicator *, db_error *error);

  /* [any-thread] Never blocks. With DB_CAP_ABORT, every pending wait ends with
   * DB_ERR_ABORTED in bounded time; without it, returns DB_ERR_UNSUPPORTED. */
  db_status (*abort)(db_communicator *);

  /* [comm-serial] Ends pending operations (as abort does), joins the backend's
   * threads and frees the communicator. Not collective: peers may be gone. The
   * host is not called back after it returns. All requests must have been
   * released. */
  void (*destroy)(db_communicator *);

  /* [any-thread] Optional. Returns an extension by id, NULL if unknown. A
   * wrapper must not pass on extensions of its base that it does not wrap. */
  const void *(*get_extension)(const db_communicator *, const char *id);
} db_communicator_functions;

/* Backends embed this as the first member of their own struct. */
struct db_communicator {
  uint64_t struct_size; /* of this struct, not of the backend's own */
  const db_communicator_functions *functions; /* its functions */
  int32_t rank; /* of this process in it, from 0 */
  int32_t size; /* number of ranks */
};

/* A borrowed base communicator of a wrapper or sharding plugin. */
typedef struct db_base {
  uint64_t struct_size;
  const char *role;              /* "world", or one of coupler/bases.h */
  db_communicator *communicator; /* the host's */
} db_base;

/* The parameters of create. Valid during create, unless stated otherwise. */
typedef struct db_communicator_params {
  uint64_t struct_size;
  const db_host *host;             /* valid for the whole process */
  const db_store *store;           /* NULL if size is 1 */
  const db_option *const *options; /* set by the user; valid during create */
  uint64_t option_count;           /* of options */
  int32_t rank;               /* of this process in the communicator, from 0 */
  int32_t size;               /* number of ranks of the communicator */
  int32_t local_rank;         /* among the ranks of this machine */
  int32_t local_size;         /* number of ranks of this machine */
  int32_t device_index;       /* -1: no device */
  db_memory memory;           /* mostly used by the caller; a hint for set-up */
  int64_t default_timeout_ns; /* > 0 */
  /* Where sockets listen: an interface name or address; NULL: loopback. */
  const char *interface_name;
  const db_base *const *bases; /* outlive the result; see DB_CAP_NEEDS_BASE */
  uint64_t base_count;         /* of bases; 0 without DB_CAP_NEEDS_BASE */
} db_communicator_params;

/*
 * Coarse capabilities; supports() is exact.
 *
 * DB_CAP_NEEDS_BASE marks a wrapper or sharding plugin. The host first creates
 * a base communicator with the same rank and size as params, and passes it as
 * the only db_base, with role "world". The option "base" of the plugin's TOML
 * table selects the base's backend (a name or a path; by default, the transport
 * that "auto" picks). The host consumes that option: it is not in
 * params->options and need not be in default_options. A base that itself needs
 * a base of role "world" is refused. A backend that stands on several
 * transports names their roles in coupler/bases.h. The base is borrowed: it
 * outlives the communicator and everything split from it, and the plugin never
 * destroys it. The other bits of such a plugin are the capabilities it passes
 * on if its base has them.
 */
enum {
  DB_CAP_ABORT = 1u << 0, /* abort ends pending operations */
  DB_CAP_SPLIT = 1u << 1,
  DB_CAP_STREAM_ORDERED = 1u << 2, /* wait_stream works, submit never blocks */
  DB_CAP_HOST_MEMORY = 1u << 3,
  DB_CAP_CUDA_MEMORY = 1u << 4,
  DB_CAP_NEEDS_BASE = 1u << 5,       /* a wrapper or sharding plugin */
  DB_CAP_NEEDS_MPI_LAUNCH = 1u << 6, /* processes must be started by mpirun */
  DB_CAP_ONE_MACHINE = 1u << 7       /* connects only ranks of one machine;
                                        "auto" takes it only if all are */
};

/* ---- What a backend exports ---------------------------------------------- */

/* Static and constant. Loading the library and calling the entry function must
 * not allocate memory or do I/O. */
typedef struct DistributedBackend {
  uint64_t struct_size;
  uint32_t abi_major;      /* DB_ABI_MAJOR as compiled */
  uint32_t abi_minor;      /* DB_ABI_MINOR as compiled */
  const char *name;        /* its name in backend.use: "gloo_cpu" */
  const char *version;     /* of the plugin: "0.1.0" */
  const char *description; /* one sentence */
  uint64_t capabilities;   /* DB_CAP_* */

  /* [any-thread] Whether the backend is usable in this process on this machine:
   * *score = 0 if not; "auto" prefers higher scores. reason (the caller's
   * buffer) always says why, or what was found ("Open MPI 4.1.4"). Cheap; must
   * not communicate. */
  db_status (*probe)(const db_host *host, int32_t *score, char *reason,
                     uint64_t reason_capacity);

  /* [any-thread] Returns every option of the plugin, with its default. */
  const db_option *const *(*default_options)(uint64_t *count);

  /* [any-thread] Collective: every rank calls it with the same size and
   * options. Blocks until the ranks are connected or the default timeout has
   * passed. For an unknown option or one of the wrong type it returns
   * DB_ERR_UNKNOWN_OPTION or DB_ERR_INVALID_ARGUMENT before doing anything
   * else. */
  db_status (*create)(const db_communicator_params *params,
                      db_communicator **result, db_error *error);

  /* [any-thread] Optional. Returns an extension by id, NULL if unknown. */
  const void *(*get_extension)(const char *id);
} DistributedBackend;

/* The function that a backend exports as DB_ENTRY_SYMBOL. */
typedef const DistributedBackend *(*db_entry_function)(void);

#ifdef __cplusplus
}
#endif

#endif /* COUPLER_DISTRIBUTED_BACKEND_H_ */
