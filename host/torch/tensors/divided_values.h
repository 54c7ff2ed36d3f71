// Values that the ranks of a tensor group have divided among them: the results of colwise layers,
// and what modules make of them until a rowwise layer takes them. Each rank draws random numbers of
// its own for these, as in Megatron-LM, so that dropout does not drop the same in every rank's
// part. Its generators go on as those of the other ranks: what all have is dropped alike.
// [any-thread]; what is divided is the calling thread's.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tensors/graph_life.h"

namespace coupler::tensors {

struct DividedValues {
  std::vector<int64_t> features;  // of the layers' results on this rank
  int rank = 0;
  GraphLife life = {};  // of the latest layer's result; none are divided once it has ended
};

// From now on, such values are divided. Null: none are. Returns what was set before.
std::shared_ptr<const DividedValues> set_divided_values(
    std::shared_ptr<const DividedValues> values);
std::shared_ptr<const DividedValues> divided_values();

// Whether dropout of this tensor is of divided values: it has the features of a layer's result, or
// four dimensions, as scores of attention, [batch, heads, tokens, tokens].
bool is_divided(const at::Tensor& tensor);

// While it lives, the generator of a device draws this rank's own numbers. They follow from a
// number that all ranks draw alike from the CPU's generator: a computation that runs again with the
// state that this had draws them again. The thread's values are divided.
class OwnDraws {
 public:
  explicit OwnDraws(c10::Device device);
  ~OwnDraws();
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;  // which comes back
};

// While it lives, the calling thread's values are divided as they were when these were taken.
class DividedValuesScope {
 public:
  explicit DividedValuesScope(const std::shared_ptr<const DividedValues>& values);
  ~DividedValuesScope();
  DividedValuesScope(const DividedValuesScope&) = delete;
  DividedValuesScope& operator=(const DividedValuesScope&) = delete;

 private:
  std::shared_ptr<const DividedValues> before_;
};

}  // namespace coupler::tensors
