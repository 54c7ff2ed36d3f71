#include "cpp_self/communicator.h"

#include <memory>
#include <string>

#include "cpp_self/operations.h"
#include "cpp_self/requests.h"
#include "cpp_self/status.h"

namespace plugin {
namespace {

// The ABI's struct comes first, so the host's pointer points to this struct.
struct Communicator : db_communicator {
  Settings settings;
  std::shared_ptr<Mailbox> box = std::make_shared<Mailbox>();
};

Communicator &mine(db_communicator *communicator) {
  return static_cast<Communicator &>(*communicator);
}
const Communicator &mine(const db_communicator *communicator) {
  return static_cast<const Communicator &>(*communicator);
}

// Adds a message to a status.
Status outcome(db_status code) {
  switch (code) {
    case DB_OK:
    case DB_IN_PROGRESS:
      return {code};
    case DB_ERR_TIMEOUT:
      return {code, "no matching send or receive came before the deadline",
              DB_ERROR_COMM_DEAD};
    case DB_ERR_MISMATCH:
      return {code, "send and receive differ in size", DB_ERROR_COMM_DEAD};
    default:
      return {code, "the communicator was aborted or has failed",
              DB_ERROR_COMM_DEAD};
  }
}

Status start(Communicator &self, const db_op &op, db_request **request) {
  if (self.box->state() != DB_OK) return outcome(DB_ERR_ABORTED);
  if (!is_supported(op))
    return {DB_ERR_UNSUPPORTED, "kind " + std::to_string(op.kind) +
                                    " with dtype " + std::to_string(op.dtype) +
                                    ", reduction " + std::to_string(op.reduce) +
                                    " and memory " + std::to_string(op.memory) +
                                    " is not supported"};
  if (const char *problem = argument_problem(op))
    return {DB_ERR_INVALID_ARGUMENT, problem};
  if (!is_message(op)) {
    perform(op);
    if (!self.settings.always_request || (op.flags & DB_OP_BLOCKING) != 0)
      return {};
  }

  auto made = std::make_unique<db_request>();
  made->box = self.box;
  if (!is_message(op)) {
    made->status = DB_OK;
    *request = made.release();
    return {DB_IN_PROGRESS};
  }
  made->is_send = op.kind == DB_SEND;
  made->send = op.send;
  made->recv = op.recv;
  made->bytes = op.count * dtype_bytes(op.dtype);
  made->tag = op.tag;
  made->deadline =
      after(op.timeout_ns > 0 ? op.timeout_ns : self.settings.timeout_ns);
  const db_status status = self.box->post(*made);
  if (status == DB_IN_PROGRESS) *request = made.release();
  return outcome(status);
}

db_status supports(const db_communicator *, const db_op *op, int32_t *score) {
  *score = is_supported(*op) ? 1 : 0;
  return DB_OK;
}

db_status submit(db_communicator *communicator, const db_op *op,
                 db_request **request, db_error *error) {
  *request = nullptr;
  return guarded(error,
                 [&] { return start(mine(communicator), *op, request); });
}

db_status test(db_request *request, db_error *error) {
  return guarded(error, [&] { return outcome(request->box->test(*request)); });
}

db_status wait_host(db_request *request, int64_t timeout_ns, db_error *error) {
  return guarded(error, [&]() -> Status {
    const db_status status = request->box->wait(
        *request, timeout_ns < 0 ? Time::max() : after(timeout_ns));
    if (status != DB_IN_PROGRESS) return outcome(status);
    return {DB_ERR_TIMEOUT, "not complete yet; the operation continues",
            DB_ERROR_RETRYABLE};
  });
}

// The mailbox may be destroyed together with the request.
void release(db_request *request) {
  const std::shared_ptr<Mailbox> box = request->box;
  box->release(request);
}

db_status split(db_communicator *communicator, int32_t color, int32_t,
                db_communicator **result, db_error *error) {
  *result = nullptr;
  return guarded(error, [&]() -> Status {
    if (mine(communicator).box->state() != DB_OK)
      return outcome(DB_ERR_ABORTED);
    if (color >= 0) *result = make_communicator(mine(communicator).settings);
    return {};
  });
}

db_status async_error(const db_communicator *communicator, db_error *error) {
  return guarded(error,
                 [&] { return outcome(mine(communicator).box->state()); });
}

db_status abort_pending(db_communicator *communicator) {
  mine(communicator).box->end(DB_ERR_ABORTED);
  return DB_OK;
}

void destroy(db_communicator *communicator) {
  mine(communicator).box->end(DB_ERR_ABORTED);
  delete &mine(communicator);
}

// wait_stream (host memory only) and get_extension (no extensions) stay null.
constexpr db_communicator_functions make_functions() {
  db_communicator_functions table{};
  table.struct_size = sizeof(db_communicator_functions);
  table.supports = supports;
  table.submit = submit;
  table.test = test;
  table.wait_host = wait_host;
  table.release = release;
  table.split = split;
  table.async_error = async_error;
  table.abort = abort_pending;
  table.destroy = destroy;
  return table;
}
constexpr db_communicator_functions kFunctions = make_functions();

}  // namespace

db_communicator *make_communicator(const Settings &settings) {
  auto made = std::make_unique<Communicator>();
  made->struct_size = sizeof(db_communicator);
  made->functions = &kFunctions;
  made->rank = 0;
  made->size = 1;
  made->settings = settings;
  return made.release();
}

}  // namespace plugin
