// GradientCompression: implements communication.gradients for one model that every rank holds
// whole: makes the reductions of its buckets and owns the state carried from step to step. Used by
// the training thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/bucket_reduction.h"
#include "strategy/flat_parameters.h"
#include "strategy/model.h"
#include "strategy/power_sgd.h"

namespace coupler::strategy {

class GradientCompression {
 public:
  // flat must outlive this and everything it makes. Throws Error(kUnsupported) if the transport
  // lacks an operation it needs.
  GradientCompression(const config::CommunicationConfig& config, const FlatParameters& flat,
                      const comm::Communicator& comm);

  // Whether reducing changes gradients, so that data that must stay exact is reduced separately.
  bool lossy() const { return codec_ != nullptr || power_sgd_ != nullptr; }
  // The reduction of elements [begin, begin + size of memory) of a group's gradients, which are
  // those of the slots, padding included.
  std::unique_ptr<BucketReduction> reduction_of(const FlatGroup& group, size_t first_slot,
                                                size_t end_slot, int64_t begin,
                                                const at::Tensor& memory);
  // Call before the first bucket of each reduced backward.
  void begin_backward() {
    if (power_sgd_ != nullptr) power_sgd_->begin();
  }
  // The state this rank carries.
  std::vector<StateTensor> state_tensors() const;

 private:
  const FlatParameters& flat_;
  const int rank_, ranks_;
  std::shared_ptr<const GradientCodec> codec_;  // null: not used
  std::unique_ptr<PowerSgd> power_sgd_;
  std::vector<at::Tensor> errors_;  // by group, like its gradients; undefined without feedback
};

// An all-reduce of the memory without compression.
std::unique_ptr<BucketReduction> whole_reduction(at::Tensor memory);

// Throws Error(kUnsupported) naming the setting if the transport lacks the operation on bytes.
void require_bytes(const comm::Communicator& comm, db_kind kind, c10::Device device);

}  // namespace coupler::strategy
