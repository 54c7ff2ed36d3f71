#include "shm/operation_executor.h"

#include <exception>
#include <string>
#include <utility>

namespace db::shm {

OperationExecutor::Shared::Shared(int32_t own_rank, Joined joined, const Patience& patience)
    : segment(std::move(joined.segment)),
      arena(std::move(joined.arena)),
      peers(segment.get(), own_rank, std::move(joined.lifelines), std::move(joined.kept)),
      synchronizer(segment.get(), &peers, own_rank, patience),
      messages(own_rank, segment.get(), &peers, &synchronizer) {
  synchronizer.set_background(&messages);
}

OperationExecutor::OperationExecutor(int32_t rank, int32_t size, Joined joined,
                                     const Patience& patience)
    : rank_(rank),
      shared_(size == 1 ? nullptr : std::make_unique<Shared>(rank, std::move(joined), patience)),
      collectives_(rank, size, segment(), shared_ == nullptr ? nullptr : &shared_->synchronizer,
                   arena()) {}

Failure OperationExecutor::execute(Op& op) {
  try {
    if (is_point_to_point(op.kind)) return conclude(op, shared_->messages.start(op));
    return conclude(op, collectives_.run(op));
  } catch (const std::exception&) {
    return conclude(op, failure_of_exception(op));
  }
}

Failure OperationExecutor::poll(Op& op) { return conclude(op, shared_->messages.poll(op)); }

void OperationExecutor::cancel(Op& op) {
  // A message that may be partly sent cannot be taken back. The queue cancels only operations of a
  // communicator that has failed.
  op.native = nullptr;
  abort();
}

void OperationExecutor::abort() {
  if (shared_ != nullptr) shared_->synchronizer.abort();
}

Failure OperationExecutor::conclude(const Op& op, Failure result) {
  if (!result.dead() || shared_ == nullptr) return result;
  if (result.status == DB_ERR_PEER_LOST) result.message = describe(op) + ": " + result.message;
  // The cause is there before this rank leaves, because that is what the other ranks notice.
  if (result.status != DB_ERR_ABORTED) result = shared_->peers.settle(result);
  shared_->synchronizer.abort();
  result.message = "shm, rank " + std::to_string(rank_) + ": " + result.message;
  return result;
}

}  // namespace db::shm
