#include "c_trace/communicator.h"

#include <coupler/forward.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/error.h"

typedef struct tracer {
  db_forward forward; /* first, so that the host's pointer is a pointer to this struct */
  trace_log log;
  int32_t owns_base;
} tracer;

/* The base's request, and what to log when it is complete. */
struct db_request {
  const tracer* owner;
  db_request* below;
  trace_entry entry;
  atomic_flag logged;
};

static tracer* self(const db_communicator* communicator) { return (tracer*)(void*)communicator; }

static const db_communicator_functions* below(const db_request* request) {
  return request->owner->forward.base->functions;
}

/* Several threads may call test and wait_host at once; only one of them logs. */
static void log_once(db_request* request, const char* outcome) {
  if (!atomic_flag_test_and_set(&request->logged)) {
    trace_end(&request->owner->log, &request->entry, outcome);
  }
}

static db_status submit(db_communicator* communicator, const db_op* op, db_request** request,
                        db_error* error) {
  tracer* mine = self(communicator);
  const trace_entry entry = trace_begin(op, communicator->size);
  /* Allocated before the operation starts, because it cannot be undone afterwards. */
  db_request* made = calloc(1, sizeof(*made));
  db_request* base_request = NULL;
  db_status status;
  *request = NULL;
  if (made == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a request");
  status = db_forward_submit(communicator, op, &base_request, error);
  if (status != DB_IN_PROGRESS) {
    free(made);
    trace_end(&mine->log, &entry, status_name(status));
    return status;
  }
  made->owner = mine;
  made->below = base_request;
  made->entry = entry;
  atomic_flag_clear(&made->logged);
  *request = made;
  return DB_IN_PROGRESS;
}

static db_status test(db_request* request, db_error* error) {
  const db_status status = below(request)->test(request->below, error);
  if (status != DB_IN_PROGRESS) log_once(request, status_name(status));
  return status;
}

static db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  const db_status status = below(request)->wait_host(request->below, timeout_ns, error);
  /* A wait that only timed out does not tell how the operation ended: test it. */
  if (status != DB_ERR_TIMEOUT || below(request)->test(request->below, NULL) != DB_IN_PROGRESS) {
    log_once(request, status_name(status));
  }
  return status;
}

static db_status wait_stream(db_request* request, void* stream, db_error* error) {
  return below(request)->wait_stream(request->below, stream, error);
}

static void release(db_request* request) {
  log_once(request, "released");
  below(request)->release(request->below);
  free(request);
}

static db_status split(db_communicator* communicator, int32_t color, int32_t key,
                       db_communicator** result, db_error* error) {
  db_communicator* part = NULL;
  db_status status = db_forward_split_base(communicator, color, key, &part, error);
  *result = NULL;
  if (status != DB_OK || part == NULL) return status;
  status = trace_create(&self(communicator)->log, part, 1, result, error);
  if (status != DB_OK) part->functions->destroy(part);
  return status;
}

static void destroy(db_communicator* communicator) {
  tracer* mine = self(communicator);
  if (mine->owns_base) mine->forward.base->functions->destroy(mine->forward.base);
  free(mine);
}

db_status trace_create(const trace_log* log, db_communicator* base, int32_t owns_base,
                       db_communicator** result, db_error* error) {
  tracer* mine = calloc(1, sizeof(*mine));
  if (mine == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a communicator");
  db_forward_init(&mine->forward, base, destroy);
  mine->forward.functions.submit = submit;
  /* Requests are our own, so everything that takes one is, too. */
  mine->forward.functions.test = test;
  mine->forward.functions.wait_host = wait_host;
  mine->forward.functions.release = release;
  if (mine->forward.functions.wait_stream != NULL)
    mine->forward.functions.wait_stream = wait_stream;
  if (db_forward_base_splits(base)) mine->forward.functions.split = split;
  mine->log = *log;
  mine->owns_base = owns_base;
  *result = &mine->forward.communicator;
  return DB_OK;
}
