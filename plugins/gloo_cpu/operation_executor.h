// OperationExecutor: runs the operations of one communicator's queue: collectives, messages between
// two ranks, and the handling of their failures. Thread rule: that of db::Executor (one thread at a
// time); abort(), and all of FailureReporter, from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bootstrap_store.h"
#include "common/error.h"
#include "common/serial_queue.h"
#include "gloo_cpu/collectives.h"
#include "gloo_cpu/connection_engine.h"
#include "gloo_cpu/full_mesh.h"

namespace db::gloo_cpu {

// How the ranks of a communicator agree on why it died. The first rank to fail writes the cause
// into the store before it closes its connections. A rank that then finds a connection closed reads
// it there, so every survivor names the rank that died and not the messenger.
class FailureReporter {
 public:
  FailureReporter(BootstrapStore store, int32_t rank, int32_t size);

  // What this rank must report for the failure it saw. Makes two or three store calls and waits at
  // most two seconds; if the store fails, the failure stands as seen.
  Failure settle(const Failure& seen) const;

  // This rank's collective number `sequence` timed out.
  void report_timeout(uint64_t sequence) const;
  // The ranks that have not reported it within a tenth of a second: they are somewhere else.
  std::vector<int32_t> ranks_without_timeout(uint64_t sequence) const;

 private:
  BootstrapStore store_;
  int32_t rank_;
  int32_t size_;
};

class OperationExecutor final : public Executor {
 public:
  // mesh: NULL if size is 1.
  OperationExecutor(int32_t rank, int32_t size, std::unique_ptr<FullMesh> mesh,
                    const BootstrapStore& store, const CollectiveLimits& limits);

  Failure execute(Op& op) override;
  Failure poll(Op& op) override;
  void cancel(Op& op) override;

  // Ends the running operation and everything after it. Never blocks.
  void abort();

 private:
  Failure start_message(Op& op);
  Failure finish_message(Op& op, Failure result);
  Failure conclude(const Op& op, Failure result);
  void explain_timeout(const Op& op, Failure* failure) const;

  const int32_t rank_;
  const int32_t size_;
  const CollectiveLimits limits_;
  std::unique_ptr<FullMesh> mesh_;
  FailureReporter reporter_;
  std::unique_ptr<ConnectionEngine> engine_;  // NULL if size is 1
  Collectives collectives_;
  MessagePool messages_;
  std::vector<uint64_t> sent_, received_;  // messages so far, by peer: both ends number them
};

}  // namespace db::gloo_cpu
