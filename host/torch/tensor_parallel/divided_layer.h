// DividedLayer: the hook that runs the operations of an unmodified layer whose weight is divided
// over a tensor group: it changes what goes into a product or a lookup and what comes out, so that
// the layer computes, together with the other ranks', what the whole one does. The weight keeps its
// names and views; only its shape is that of the part.
//
// Operations may run on any thread; those of all ranks in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "residency/parameter_hooks.h"
#include "residency/product.h"
#include "sharding/model_division.h"
#include "tensor_parallel/exchange.h"
#include "tensor_parallel/heads_check.h"
#include "tensor_parallel/plan_errors.h"

namespace coupler::tensor_parallel {

struct DividedWeight : sharding::WeightUse {
  at::Tensor weight;  // this rank's part
  // The dimension of [batch, tokens, features] along which the group divides the sequence between
  // layers; empty: every rank has all tokens.
  std::optional<int64_t> sequence;
  // More than 1: exchanges run while products are computed, forward's in that many chunks.
  int64_t overlap_chunks = 1;
};

class DividedLayer : public residency::ParameterHook {
 public:
  DividedLayer(DividedWeight weight, Group group);

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override;

 private:
  bool is_lookup(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  std::optional<residency::Product> own_product(const c10::OperatorHandle& op,
                                                const torch::jit::Stack& stack) const;
  void run_lookup(torch::jit::Stack& stack, const std::function<void()>& run) const;
  void run_product(const residency::Product& product, const c10::OperatorHandle& op,
                   torch::jit::Stack& stack, const std::function<void()>& run);
  // What the product gets of the layer's input.
  LayerInput input_of(const at::Tensor& x) const;
  LayerInput shared_input_of(const at::Tensor& x, std::optional<int64_t> gathered) const;
  // The product with what ranks exchange about it; the result is complete if the layer takes parts.
  at::Tensor overlapped(const residency::Product& product, const LayerInput& input) const;
  at::Tensor completed(const at::Tensor& result) const;
  // The dimension of tokens among those before features. divides: whether this rank will take its
  // part of them.
  int64_t tokens_in(at::IntArrayRef sizes, const std::string& layer, bool divides) const;

  void require_known(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void require_width(const at::Tensor& x) const;

  // Of the first forward: the others would do the same with their results.
  void watch_result(const at::Tensor& result);

  const DividedWeight weight_;
  const Group group_;
  std::atomic<bool> watched_ = false;  // whether a forward was
  std::shared_ptr<HeadsCheck> heads_ = nullptr;
  std::shared_ptr<PlanErrors> errors_ = nullptr;
};

}  // namespace coupler::tensor_parallel
