// HeadsCheck: watches what a module does with the result of a colwise layer in its first forward. A
// module that views the rank's part as the whole number of heads, and lets their size be what is
// left, would compute with other heads than the model has, without any error. So would one that
// views all tokens as the part of the sequence that the layer gathered them from, and a loss that
// takes a part of the classes for all.
//
// On the thread of the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "residency/parameter_hooks.h"
#include "sharding/tensor_plan.h"

namespace coupler::tensor_parallel {

class HeadsCheck : public residency::ParameterHook {
 public:
  // layer: its name; line: of the plan, with its style; ranks: of the group. sequence: the
  // dimension of tokens, if the layer gathered them.
  HeadsCheck(std::string layer, std::string line, int ranks, const sharding::LayerStyle& style,
             std::optional<int64_t> sequence = {});

  // Watches operations on this result, and on views of it, while this lives.
  static void watch(const at::Tensor& result, const std::shared_ptr<HeadsCheck>& check);

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override;

 private:
  void check(at::IntArrayRef before, std::vector<int64_t> sizes) const;
  void check_tokens(at::IntArrayRef before, const std::vector<int64_t>& sizes) const;
  void check_classes(std::string_view operation, at::IntArrayRef logits) const;

  const std::string layer_, line_;
  const int ranks_;
  const int64_t head_;     // the features of one, or a multiple of those; 1: the plan does not say
  const bool of_classes_;  // whether the layer is the head of a vocabulary
  const std::optional<int64_t> sequence_;
};

// Called by coupler::local_heads: the program knows that it has a part of the heads.
void asked_for_heads();

}  // namespace coupler::tensor_parallel
