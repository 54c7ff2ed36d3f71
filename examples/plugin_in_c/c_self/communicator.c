#include "c_self/communicator.h"

#include <stdlib.h>

#include "c_self/messages.h"
#include "c_self/operations.h"
#include "common/error.h"

typedef struct self_communicator {
  db_communicator base; /* first, so that the host's pointer is a pointer to this struct */
  messages box;
  int64_t timeout_ns;
  int32_t always_request;
} self_communicator;

static self_communicator* self(const db_communicator* communicator) {
  return (self_communicator*)(void*)communicator;
}

/* Adds a message to a status. */
static db_status outcome(db_status status, db_error* error) {
  switch (status) {
    case DB_OK:
    case DB_IN_PROGRESS:
      return status;
    case DB_ERR_TIMEOUT:
      return fail(error, status, DB_ERROR_COMM_DEAD,
                  "no matching send or receive came before the deadline");
    case DB_ERR_MISMATCH:
      return fail(error, status, DB_ERROR_COMM_DEAD, "send and receive differ in size");
    default:
      return fail(error, status, DB_ERROR_COMM_DEAD, "the communicator was aborted or has failed");
  }
}

static db_status supports(const db_communicator* communicator, const db_op* op, int32_t* score) {
  (void)communicator;
  *score = is_supported(op) ? 1 : 0;
  return DB_OK;
}

static db_status submit(db_communicator* communicator, const db_op* op, db_request** request,
                        db_error* error) {
  self_communicator* mine = self(communicator);
  const char* problem;
  db_request* made;
  db_status status = messages_state(&mine->box);
  *request = NULL;
  if (status != DB_OK) return outcome(DB_ERR_ABORTED, error);
  if (!is_supported(op)) {
    return fail(error, DB_ERR_UNSUPPORTED, 0,
                "kind %d with dtype %d, reduction %d and memory %d is not supported", op->kind,
                op->dtype, op->reduce, op->memory);
  }
  problem = argument_problem(op);
  if (problem != NULL) return fail(error, DB_ERR_INVALID_ARGUMENT, 0, "%s", problem);
  if (!is_message(op)) {
    perform(op);
    if (!mine->always_request || (op->flags & DB_OP_BLOCKING) != 0) return DB_OK;
  }

  made = calloc(1, sizeof(*made));
  if (made == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a request");
  if (!is_message(op)) {
    made->owner = &mine->box;
    made->status = DB_OK;
    *request = made;
    return DB_IN_PROGRESS;
  }
  made->is_send = op->kind == DB_SEND;
  made->send = op->send;
  made->recv = op->recv;
  made->bytes = op->count * dtype_bytes(op->dtype);
  made->tag = op->tag;
  made->deadline_ns = deadline_after(op->timeout_ns > 0 ? op->timeout_ns : mine->timeout_ns);
  status = messages_post(&mine->box, made);
  if (status == DB_IN_PROGRESS) {
    *request = made;
    return status;
  }
  free(made);
  return outcome(status, error);
}

static db_status test(db_request* request, db_error* error) {
  return outcome(messages_test(request), error);
}

static db_status wait_host(db_request* request, int64_t timeout_ns, db_error* error) {
  const int64_t until = timeout_ns < 0 ? INT64_MAX : deadline_after(timeout_ns);
  const db_status status = messages_wait(request, until);
  if (status == DB_IN_PROGRESS) {
    return fail(error, DB_ERR_TIMEOUT, DB_ERROR_RETRYABLE,
                "not complete yet; the operation continues");
  }
  return outcome(status, error);
}

static void release(db_request* request) { messages_release(request); }

static db_status split(db_communicator* communicator, int32_t color, int32_t key,
                       db_communicator** result, db_error* error) {
  self_communicator* mine = self(communicator);
  (void)key;
  *result = NULL;
  if (messages_state(&mine->box) != DB_OK) return outcome(DB_ERR_ABORTED, error);
  if (color < 0) return DB_OK;
  return communicator_create(mine->timeout_ns, mine->always_request, result, error);
}

static db_status async_error(const db_communicator* communicator, db_error* error) {
  return outcome(messages_state(&self(communicator)->box), error);
}

static db_status abort_pending(db_communicator* communicator) {
  messages_end(&self(communicator)->box, DB_ERR_ABORTED);
  return DB_OK;
}

static void destroy(db_communicator* communicator) {
  messages_close(&self(communicator)->box);
  free(self(communicator));
}

/* wait_stream (host memory only) and get_extension (no extensions) stay NULL. */
static const db_communicator_functions functions = {
    .struct_size = sizeof(db_communicator_functions),
    .supports = supports,
    .submit = submit,
    .test = test,
    .wait_host = wait_host,
    .release = release,
    .split = split,
    .async_error = async_error,
    .abort = abort_pending,
    .destroy = destroy,
};

db_status communicator_create(int64_t timeout_ns, int32_t always_request, db_communicator** result,
                              db_error* error) {
  self_communicator* mine = calloc(1, sizeof(*mine));
  int problem;
  if (mine == NULL) return fail(error, DB_ERR_NO_MEMORY, 0, "no memory for a communicator");
  problem = messages_open(&mine->box);
  if (problem != 0) {
    free(mine);
    fail(error, DB_ERR_SYSTEM, 0, "cannot create a mutex or condition variable");
    if (error != NULL && DB_HAS(error, db_error, native_code)) error->native_code = problem;
    return DB_ERR_SYSTEM;
  }
  mine->base.struct_size = sizeof(mine->base);
  mine->base.functions = &functions;
  mine->base.rank = 0;
  mine->base.size = 1;
  mine->timeout_ns = timeout_ns;
  mine->always_request = always_request;
  *result = &mine->base;
  return DB_OK;
}
