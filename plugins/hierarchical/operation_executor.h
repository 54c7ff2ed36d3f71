// OperationExecutor: runs the operations of one communicator's queue on its bases. Thread rule:
// that of db::Executor (one thread at a time); stop() from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/error.h"
#include "common/serial_queue.h"
#include "hierarchical/collectives.h"
#include "hierarchical/failure_board.h"
#include "hierarchical/group.h"

namespace db::hierarchical {

class OperationExecutor final : public Executor {
 public:
  OperationExecutor(const Group* group, const FailureBoard* board, const Settings& settings)
      : group_(group), collectives_(group, board, settings) {}

  Failure execute(Op& op) override;
  Failure poll(Op& op) override;
  void cancel(Op& op) override;

  // Ends what is running, and refuses everything later. Leaves the bases alone if nothing is: peers
  // may still be completing an operation that has ended here. Never blocks.
  void stop();

 private:
  Failure start_message(Op& op);
  Failure test_message(Op& op);

  const Group* const group_;
  Collectives collectives_;
  std::atomic<int64_t> running_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace db::hierarchical
