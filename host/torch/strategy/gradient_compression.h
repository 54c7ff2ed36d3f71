// GradientCompression: implements communication.gradients for one model that every rank holds
// whole: makes the reductions of its buckets and owns the state carried from step to step. Used by
// the training thread.
#pragma once

#include <memory>
#include <string>
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
  // Whether what is carried belongs to a bucket, whose bounds must then stay.
  bool by_bucket() const { return power_sgd_ != nullptr && power_sgd_->is_batched(); }
  // The reduction of the slots' part of a group's gradients, padding included.
  std::unique_ptr<BucketReduction> reduction_of(const FlatGroup& group, size_t first_slot,
                                                size_t end_slot, const at::Tensor& memory);
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

// Throws Error(kUnsupported) naming the setting, a key of [communication], if the transport lacks
// the operation on this type.
void require_operation(const comm::Communicator& comm, const std::string& setting, db_kind kind,
                       at::ScalarType type, c10::Device device);

}  // namespace coupler::strategy
