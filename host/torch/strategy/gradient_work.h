// GradientWork: communication of gradients in steps. A step waits for the collective in flight,
// does local work and starts the next collective. Whoever owns the works of several buckets decides
// when each takes its next step, so that all collectives of a communicator are in one order. Used
// by the thread that runs backward.
#pragma once

#include "comm/communicator.h"
#include "strategy/bucket_reduction.h"

namespace coupler::strategy {

class GradientWork {
 public:
  GradientWork() = default;
  virtual ~GradientWork() = default;
  GradientWork(const GradientWork&) = delete;
  GradientWork& operator=(const GradientWork&) = delete;

  // Whether a step is left that may start a collective.
  virtual bool more() const = 0;
  virtual void step() = 0;
  // Whether no step is left and nothing is in flight; never blocks.
  virtual bool done() = 0;
  // Takes the steps that are left, waits and does the remaining local work.
  virtual void finish() = 0;
};

// One run of a bucket's reduction.
class ReductionWork final : public GradientWork {
 public:
  // overlap: false completes each collective in its step. Both must outlive this.
  ReductionWork(comm::Communicator& comm, BucketReduction& reduction, bool overlap)
      : comm_(comm), reduction_(reduction), overlap_(overlap) {}

  bool more() const override { return issued_ < reduction_.operations(); }
  void step() override;
  bool done() override { return !more() && work_.done(); }
  void finish() override;

 private:
  comm::Communicator& comm_;
  BucketReduction& reduction_;
  const bool overlap_;
  int issued_ = 0;
  comm::Work work_;
};

}  // namespace coupler::strategy
