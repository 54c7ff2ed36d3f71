// OperationExecutor: runs the operations of one communicator's queue: collectives, messages between
// two ranks, and the handling of their failures. Thread rule: that of db::Executor (one thread at a
// time); abort() from any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "common/error.h"
#include "common/serial_queue.h"
#include "shm/arena.h"
#include "shm/collectives.h"
#include "shm/joining.h"
#include "shm/message_engine.h"
#include "shm/peers.h"
#include "shm/segment.h"
#include "shm/synchronizer.h"

namespace db::shm {

class OperationExecutor final : public Executor {
 public:
  // joined: empty if size is 1.
  OperationExecutor(int32_t rank, int32_t size, Joined joined, const Patience& patience);

  Failure execute(Op& op) override;
  Failure poll(Op& op) override;
  void cancel(Op& op) override;

  // Ends the running operation and everything after it, here and on the other ranks. Never blocks.
  void abort();

  // NULL if size is 1.
  Segment* segment() const { return shared_ == nullptr ? nullptr : shared_->segment.get(); }
  Arena* arena() const { return shared_ == nullptr ? nullptr : shared_->arena.get(); }
  const Peers* peers() const { return shared_ == nullptr ? nullptr : &shared_->peers; }

 private:
  // What only a communicator of several ranks has.
  struct Shared {
    Shared(int32_t own_rank, Joined joined, const Patience& patience);

    const std::unique_ptr<Segment> segment;
    const std::shared_ptr<Arena> arena;
    Peers peers;
    Synchronizer synchronizer;
    MessageEngine messages;
  };

  Failure conclude(const Op& op, Failure result);

  const int32_t rank_;
  const std::unique_ptr<Shared> shared_;
  Collectives collectives_;
};

}  // namespace db::shm
