/*
 * c_self: a backend for a world of one process, in plain C. It supports every operation and type by
 * copying, scaling, or sending a message to itself. This file contains what every backend has: the
 * table.
 */
#include <coupler/distributed_backend.h>
#include <string.h>

#include "c_self/communicator.h"
#include "common/error.h"

static const db_option always_request = {
    .struct_size = sizeof(db_option),
    .key = "always_request",
    .type = DB_OPTION_BOOL,
    .boolean = 1,
    .description = "Return a request for every operation that does not block, as a network would.",
};
static const db_option* const options[] = {&always_request};

static db_status probe(const db_host* host, int32_t* score, char* reason, uint64_t capacity) {
  (void)host;
  *score = 1;
  copy_text(reason, capacity, "always usable, for one process");
  return DB_OK;
}

static const db_option* const* default_options(uint64_t* count) {
  *count = sizeof(options) / sizeof(options[0]);
  return options;
}

static db_status create(const db_communicator_params* params, db_communicator** result,
                        db_error* error) {
  int32_t requests = always_request.boolean;
  uint64_t i;
  *result = NULL;
  for (i = 0; i < params->option_count; ++i) {
    const db_option* option = params->options[i];
    if (strcmp(option->key, always_request.key) != 0) {
      return fail(error, DB_ERR_UNKNOWN_OPTION, 0,
                  "unknown option '%s'; c_self knows: always_request", option->key);
    }
    if (option->type != DB_OPTION_BOOL) {
      return fail(error, DB_ERR_INVALID_ARGUMENT, 0,
                  "option 'always_request' must be true or false");
    }
    requests = option->boolean;
  }
  if (params->size != 1) {
    return fail(error, DB_ERR_INVALID_ARGUMENT, 0, "c_self supports one process, not %d",
                params->size);
  }
  return communicator_create(params->default_timeout_ns, requests, result, error);
}

static const DistributedBackend backend = {
    .struct_size = sizeof(DistributedBackend),
    .abi_major = DB_ABI_MAJOR,
    .abi_minor = DB_ABI_MINOR,
    .name = "c_self",
    .version = "0.1.0",
    .description = "A world of one process, in plain C.",
    .capabilities = DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    .probe = probe,
    .default_options = default_options,
    .create = create,
};

DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void);
const DistributedBackend* coupler_distributed_backend_v1(void) { return &backend; }
