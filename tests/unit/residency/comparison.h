// Comparison of a managed module with a plain one of the same values: outputs, gradients, buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "managed.h"

namespace coupler::testing {

using Tensors = std::vector<at::Tensor>;

// Makes inputs, the same ones each time; those of floating point get gradients.
class Inputs {
 public:
  at::Tensor real(at::IntArrayRef sizes);
  static at::Tensor index(int64_t below, at::IntArrayRef sizes);
  const Tensors& leaves() const { return leaves_; }

 private:
  Tensors leaves_;
};

// A module and a way to use it. Two calls of make give the same values.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(Inputs&)> forward;
};
using Make = std::function<Subject()>;

using Outcome = std::vector<std::pair<std::string, at::Tensor>>;

// One forward and backward from the same random state; gradients are taken out of the module.
Outcome run(const Subject& subject);

// Names and shapes equal, values within tolerance (relative to the largest).
void expect_same(const Outcome& actual, const Outcome& expected, double tolerance = 1e-6);

// A plain one and a managed one, two passes each; everything is released at the end, and no more is
// alive at a time than the units_at_once largest ones.
void expect_managed_equals_plain(const Make& make, const ManagedOptions& options = {},
                                 size_t units_at_once = 1);

}  // namespace coupler::testing
