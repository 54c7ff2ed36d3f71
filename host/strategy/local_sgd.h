// LocalSGD: ranks train by themselves, and every few optimizer steps their parameters become the
// average of all; with momentum, that average moved on in the direction of the averages before it
// (SlowMo, Wang et al. 2020, with a slow learning rate of 1). Used by the thread that trains.
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
  // The parameters are equal on all ranks. buffers: become rank 0's with each average. flat
  // outlives this.
  LocalSgd(const CommunicationConfig& config, FlatParameters& flat,
           std::shared_ptr<Communicator> comm, std::vector<at::Tensor> buffers);

  // After each step of an optimizer, on every rank.
  void stepped() { ++since_average_; }
  // Averages where as many steps as there are to be were taken since the last time. Collective
  // then.
  void average_if_due();
  void set_steps(int64_t steps) { steps_ = steps; }
  // Averages what steps since the last average have moved apart. Collective.
  void settle();
  // Forgets those steps: what is in memory now is equal on all ranks.
  void begin_anew();
  // With momentum: what the next average moves by, by parameter.
  NamedTensors carried() const;

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
