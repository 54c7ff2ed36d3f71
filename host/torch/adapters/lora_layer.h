// LoraLayer: the low-rank product of one linear layer, and the hook that adds it to the layer's
// result. Operations on the layer may run on any thread; everything else is the owner's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "residency/parameter_hooks.h"

namespace coupler::adapters {

// What all products of an adapter share.
struct LoraSwitch {
  std::atomic<bool> enabled{true};
  std::atomic<bool> merged{false};
  bool adds() const { return enabled.load() && !merged.load(); }
};

// The submodule that holds A or B as "weight". That of A owns the layer's hook.
class LoraMatrix : public torch::nn::Module {
 public:
  LoraMatrix(at::Tensor value, bool trainable);
  at::Tensor weight;
  std::shared_ptr<residency::ParameterHook> hook;
};

// A linear layer of the model, by its weight.
struct TargetLayer {
  std::string name;  // dotted
  std::shared_ptr<torch::nn::Module> module;
  at::Tensor weight;
  bool transposed = false;  // the weight is [in, out]
  int64_t in() const { return weight.size(transposed ? 0 : 1); }
  int64_t out() const { return weight.size(transposed ? 1 : 0); }
};

struct LoraLayer {
  TargetLayer target;
  std::shared_ptr<LoraMatrix> a, b;
  std::shared_ptr<std::atomic<bool>> used;  // whether a product was computed
  double scaling = 1;

  int64_t rank() const { return a->weight.size(0); }
  // scaling · B A, in the weight's orientation and A's type.
  at::Tensor product() const;
};

// Registers the submodules and the hook. a: [rank, in], b: [out, rank].
LoraLayer attach(TargetLayer target, at::Tensor a, at::Tensor b, double scaling, double dropout,
                 bool trainable, std::shared_ptr<const LoraSwitch> adapter);
void detach(const LoraLayer& layer);

}  // namespace coupler::adapters
