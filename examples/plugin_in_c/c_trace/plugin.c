/*
 * c_trace: a wrapper that logs every operation (kind, type, count, outcome, duration) and forwards
 * it to its base, in plain C. The host creates the base named by "base" in [backend.c_trace].
 */
#include <coupler/distributed_backend.h>
#include <string.h>

#include "c_trace/communicator.h"
#include "c_trace/log.h"
#include "common/error.h"

static const db_option severity = {
    .struct_size = sizeof(db_option),
    .key = "severity",
    .type = DB_OPTION_STRING,
    .string = "info",
    .description = "Severity of the log lines: trace, debug, info, warning or error.",
};
static const db_option* const options[] = {&severity};

static db_status probe(const db_host* host, int32_t* score, char* reason, uint64_t capacity) {
  (void)host;
  *score = 1;
  copy_text(reason, capacity, "wraps any transport");
  return DB_OK;
}

static const db_option* const* default_options(uint64_t* count) {
  *count = sizeof(options) / sizeof(options[0]);
  return options;
}

static db_communicator* world_of(const db_communicator_params* params) {
  uint64_t i;
  for (i = 0; i < params->base_count; ++i) {
    if (strcmp(params->bases[i]->role, "world") == 0) return params->bases[i]->communicator;
  }
  return NULL;
}

static db_status create(const db_communicator_params* params, db_communicator** result,
                        db_error* error) {
  trace_log log = {params->host, severity_of(severity.string)};
  db_communicator* base = world_of(params);
  uint64_t i;
  *result = NULL;
  for (i = 0; i < params->option_count; ++i) {
    const db_option* option = params->options[i];
    if (strcmp(option->key, severity.key) != 0) {
      return fail(error, DB_ERR_UNKNOWN_OPTION, 0, "unknown option '%s'; c_trace knows: severity",
                  option->key);
    }
    log.severity = option->type == DB_OPTION_STRING ? severity_of(option->string) : -1;
    if (log.severity < 0) {
      return fail(
          error, DB_ERR_INVALID_ARGUMENT, 0,
          "option 'severity' must be \"trace\", \"debug\", \"info\", \"warning\" or \"error\"");
    }
  }
  if (base == NULL) {
    return fail(error, DB_ERR_INVALID_ARGUMENT, 0,
                "c_trace needs a base communicator with role \"world\"");
  }
  return trace_create(&log, base, 0, result, error);
}

/* Capabilities other than NEEDS_BASE are passed on if the base has them. */
static const DistributedBackend backend = {
    .struct_size = sizeof(DistributedBackend),
    .abi_major = DB_ABI_MAJOR,
    .abi_minor = DB_ABI_MINOR,
    .name = "c_trace",
    .version = "0.1.0",
    .description = "Logs every operation and forwards it to a base, in plain C.",
    .capabilities = DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    .probe = probe,
    .default_options = default_options,
    .create = create,
};

DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void);
const DistributedBackend* coupler_distributed_backend_v1(void) { return &backend; }
