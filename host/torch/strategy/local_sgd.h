// LocalSGD: ranks train independently, and every few optimizer steps their parameters become the
// average over all ranks; with momentum, that average moved further in the direction of earlier
// averages (SlowMo, Wang et al. 2020, with a slow learning rate of 1). Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "strategy/flat_parameters.h"
#include "strategy/model.h"

namespace coupler {

class LocalSgd {
 public:
  // The parameters must be equal on all ranks. buffers: set to rank 0's with each average. flat
  // must outlive this.
  LocalSgd(const CommunicationConfig& config, FlatParameters& flat,
           std::shared_ptr<Communicator> comm, std::vector<at::Tensor> buffers);

  // Call after each step of an optimizer, on every rank.
  void stepped() { ++since_average_; }
  // Averages if the set number of steps was taken since the last average; then collective.
  void average_if_due();
  void set_steps(int64_t steps) { steps_ = steps; }
  // Averages if steps were taken since the last average; then collective.
  void synchronize();
  // Forgets those steps: the parameters in memory are now equal on all ranks.
  void restart();
  // With momentum: the velocity of each parameter.
  std::vector<StateTensor> state_tensors() const;

 private:
  void average();

  FlatParameters& flat_;
  const std::shared_ptr<Communicator> comm_;
  const std::vector<at::Tensor> buffers_;
  int64_t steps_;
  const double momentum_;
  int64_t since_average_ = 0;
  std::vector<at::Tensor> previous_, velocity_;  // by group, with momentum
};

}  // namespace coupler
