// GradientCompression: what communication.gradients says, for one model that every rank holds
// whole: makes the reductions of its buckets, and owns what is carried from step to step. Used by
// the thread that trains.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/bucket_reduction.h"
#include "strategy/flat_parameters.h"
#include "strategy/gradient_codec.h"
#include "strategy/model.h"
#include "strategy/power_sgd.h"

namespace coupler {

class GradientCompression {
 public:
  // flat outlives this and all it makes. Throws Error(kUnsupported) where the transport lacks what
  // it needs.
  GradientCompression(const CommunicationConfig& config, const FlatParameters& flat,
                      const Communicator& comm);

  // Whether gradients change on their way, so that what must not be changed has to go apart.
  bool lossy() const { return codec_ != nullptr || power_sgd_ != nullptr; }
  // Of the elements [begin, begin + size of memory) of a group's gradients, which are those of the
  // slots, padding included.
  std::unique_ptr<BucketReduction> reduction_of(const FlatGroup& group, size_t first_slot,
                                                size_t end_slot, int64_t begin,
                                                const at::Tensor& memory);
  // Before the first bucket of each backward that is reduced.
  void begin_backward();
  // Gradients of later backwards are factor times as large, and what is carried of earlier ones
  // too.
  void gradient_scale_changes(double factor);
  // What this rank carries, under names that are the same where model and settings are: its own
  // memory, which a load may write to.
  NamedTensors carried() const;

 private:
  void require_operations(const Communicator& comm) const;

  const FlatParameters& flat_;
  const int rank_, ranks_;
  std::shared_ptr<const GradientCodec> codec_;  // null: none of these
  std::unique_ptr<PowerSgd> power_sgd_;
  std::vector<at::Tensor> errors_;  // by group, as its gradients; undefined without feedback
};

// An all-reduce of the memory as it is.
std::unique_ptr<BucketReduction> whole_reduction(at::Tensor memory);

// Throws Error(kUnsupported) naming the setting where the transport lacks an operation on bytes.
void require_bytes(const Communicator& comm, db_kind kind, c10::Device device);

}  // namespace coupler
