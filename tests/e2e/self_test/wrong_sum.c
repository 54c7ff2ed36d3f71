/*
 * wrong_sum: a faulty backend, like a faulty network card or library: the first number of every sum
 * of floats that its base computes is one too high. For tests of code that must notice it.
 */
#include <coupler/distributed_backend.h>
#include <coupler/forward.h>
#include <stddef.h>
#include <stdlib.h>

static db_status submit(db_communicator* communicator, const db_op* op, db_request** request,
                        db_error* error) {
  const db_communicator_functions* below = db_forward_of(communicator)->base->functions;
  db_status status = db_forward_submit(communicator, op, request, error);
  if (op->kind != DB_ALL_REDUCE || op->dtype != DB_F32 || op->count == 0) return status;
  if (status == DB_IN_PROGRESS) {
    status = below->wait_host(*request, -1, error);
    below->release(*request);
    *request = NULL;
  }
  if (status == DB_OK) *(float*)op->recv += 1;
  return status;
}

static db_status wrap(db_communicator* base, void (*destroy)(db_communicator*),
                      db_communicator** result);

static void forget(db_communicator* communicator) { free(communicator); }

static void destroy_with_base(db_communicator* communicator) {
  db_communicator* base = db_forward_of(communicator)->base;
  base->functions->destroy(base);
  free(communicator);
}

static db_status split(db_communicator* communicator, int32_t color, int32_t key,
                       db_communicator** result, db_error* error) {
  db_communicator* part = NULL;
  const db_status status = db_forward_split_base(communicator, color, key, &part, error);
  *result = NULL;
  if (status != DB_OK || part == NULL) return status;
  return wrap(part, destroy_with_base, result);
}

static db_status wrap(db_communicator* base, void (*destroy)(db_communicator*),
                      db_communicator** result) {
  db_forward* forward = calloc(1, sizeof(*forward));
  if (forward == NULL) return DB_ERR_NO_MEMORY;
  db_forward_init(forward, base, destroy);
  forward->functions.submit = submit;
  forward->functions.split = split;
  *result = &forward->communicator;
  return DB_OK;
}

static db_status probe(const db_host* host, int32_t* score, char* reason, uint64_t capacity) {
  (void)host;
  *score = 1;
  if (capacity > 0) reason[0] = '\0';
  return DB_OK;
}

static const db_option* const* default_options(uint64_t* count) {
  *count = 0;
  return NULL;
}

static db_status create(const db_communicator_params* params, db_communicator** result,
                        db_error* error) {
  (void)error;
  return wrap(params->bases[0]->communicator, forget, result);
}

static const DistributedBackend backend = {
    .struct_size = sizeof(DistributedBackend),
    .abi_major = DB_ABI_MAJOR,
    .abi_minor = DB_ABI_MINOR,
    .name = "wrong_sum",
    .version = "0.1.0",
    .description = "Adds an error to every sum of its base; for tests.",
    .capabilities = DB_CAP_NEEDS_BASE | DB_CAP_ABORT | DB_CAP_SPLIT | DB_CAP_HOST_MEMORY,
    .probe = probe,
    .default_options = default_options,
    .create = create,
};

DB_EXPORT const DistributedBackend* coupler_distributed_backend_v1(void);
const DistributedBackend* coupler_distributed_backend_v1(void) { return &backend; }
