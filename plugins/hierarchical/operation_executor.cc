#include "hierarchical/operation_executor.h"

#include <exception>
#include <memory>
#include <utility>

namespace db::hierarchical {

Failure OperationExecutor::execute(Op& op) {
  ++running_;
  Failure result = Failure::make(DB_ERR_ABORTED, "the communicator was destroyed or aborted",
                                 DB_ERROR_COMM_DEAD);
  try {
    if (!stopped_) result = is_point_to_point(op.kind) ? start_message(op) : collectives_.run(op);
  } catch (const std::exception&) {
    result = collectives_.give_up(op, failure_of_exception(op));
  }
  if (result.status != DB_IN_PROGRESS) --running_;
  return result;
}

Failure OperationExecutor::start_message(Op& op) {
  db_op message{};
  const Base& base = collectives_.base_of(op, &message);
  auto pending = std::make_unique<Pending>();
  Failure failure = base.start(message, op.deadline_ns, op.blocking, pending.get());
  if (!failure.ok()) return failure.dead() ? collectives_.give_up(op, failure) : failure;
  op.native = pending.release();
  return test_message(op);
}

Failure OperationExecutor::poll(Op& op) {
  Failure result = test_message(op);
  if (result.status != DB_IN_PROGRESS) --running_;
  return result;
}

Failure OperationExecutor::test_message(Op& op) {
  auto* const pending = static_cast<Pending*>(op.native);
  Failure result = pending->test();
  if (result.status == DB_IN_PROGRESS) return result;
  delete pending;
  op.native = nullptr;
  if (!result.ok() && result.dead()) return collectives_.give_up(op, result);
  return result;
}

void OperationExecutor::cancel(Op& op) {
  // The base ends the message itself, because this communicator has failed.
  group_->abort();
  delete static_cast<Pending*>(op.native);
  op.native = nullptr;
  --running_;
}

void OperationExecutor::stop() {
  stopped_ = true;
  if (running_ > 0) group_->abort();
}

}  // namespace db::hierarchical
