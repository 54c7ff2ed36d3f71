// Comparison of a managed module with a plain one of equal values: outputs, gradients, buffers.
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

// Makes inputs, the same every time; floating-point inputs get gradients.
class Inputs {
 public:
  at::Tensor real(at::IntArrayRef sizes);
  static at::Tensor index(int64_t below, at::IntArrayRef sizes);
  const Tensors& leaves() const { return leaves_; }

 private:
  Tensors leaves_;
};

// A module and a way to use it. Two calls of make give equal values.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(Inputs&)> forward;
};
using Make = std::function<Subject()>;

using Outcome = std::vector<std::pair<std::string, at::Tensor>>;

// One forward and backward from a fixed random state; gradients are taken out of the module.
Outcome run(const Subject& subject);

// Equal names and shapes, values within tolerance (relative to the largest).
void expect_same(const Outcome& actual, const Outcome& expected, double tolerance = 1e-6);

// Compares a plain and a managed module over two passes each. At the end everything is released,
// and at no time are more bytes alive than the units_at_once largest units.
void expect_managed_equals_plain(const Make& make, const ManagedOptions& options = {},
                                 size_t units_at_once = 1);

}  // namespace coupler::testing
