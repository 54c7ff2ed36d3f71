/*
 * c_round_robin: a sharding plugin, in plain C. Every parameter belongs to one rank, which keeps
 * its state and gradient; the other ranks have it only while it is in use. The host does the rest,
 * using the base named by "base" in [backend.c_round_robin].
 */
#include <coupler/sharding.h>
#include <string.h>

#include "c_round_robin/communicator.h"
#include "c_round_robin/plan.h"
#include "common/error.h"

static const db_option keep = {
    .struct_size = sizeof(db_option),
    .key = "keep",
    .type = DB_OPTION_STRING,
    .string = "use",
    .description =
        "How long a gathered parameter is kept: use (it may be released afterwards) or "
        "always.",
};
static const db_option* const options[] = {&keep};

static db_status probe(const db_host* host, int32_t* score, char* reason, uint64_t capacity) {
  (void)host;
  *score = 1;
  copy_text(reason, capacity, "works with any transport");
  return DB_OK;
}

static const db_option* const* default_options(uint64_t* count) {
  *count = sizeof(options) / sizeof(options[0]);
  return options;
}

/* DB_KEEP_* of the option's value, or 0. */
static db_keep keep_of(const db_option* option) {
  if (option->type != DB_OPTION_STRING || option->string == NULL) return 0;
  if (strcmp(option->string, "use") == 0) return DB_KEEP_USE;
  return strcmp(option->string, "always") == 0 ? DB_KEEP_ALWAYS : 0;
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
  db_keep chosen = keep_of(&keep);
  db_communicator* base = world_of(params);
  uint64_t i;
  *result = NULL;
  for (i = 0; i < params->option_count; ++i) {
    const db_option* option = params->options[i];
    if (strcmp(option->key, keep.key) != 0) {
      return fail(error, DB_ERR_UNKNOWN_OPTION, 0, "unknown option '%s'; c_round_robin knows: keep",
                  option->key);
    }
    chosen = keep_of(option);
    if (chosen == 0) {
      return fail(error, DB_ERR_INVALID_ARGUMENT, 0, "option 'keep' must be \"use\" or \"always\"");
    }
  }
  if (base == NULL) {
    return fail(error, DB_ERR_INVALID_ARGUMENT, 0,
                "c_round_robin needs a base communicator with role \"world\"");
  }
  return round_robin_create(chosen, base, 0, result, error);
}

static const db_sharding sharding = {
    .struct_size = sizeof(db_sharding),
    .plan = round_robin_plan,
    .release = round_robin_release,
};

static const void* get_extension(const char* id) {
  return strcmp(id, DB_SHARDING) == 0 ? &sharding : NULL;
}

static const DistributedBackend backend = {
    .struct_size = sizeof(DistributedBackend),
    .abi_major = DB_ABI_MAJOR,
    .abi_minor = DB_ABI_MINOR,
    .name = "c_round_robin",
    .version = "0.1.0",
    .description = "Shards a model by assigning parameters to ranks in turn, in plain C.",
    .capabilities = DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    .probe = probe,
    .default_options = default_options,
    .create = create,
    .get_extension = get_extension,
};

DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void);
const DistributedBackend* coupler_distributed_backend_v1(void) { return &backend; }
