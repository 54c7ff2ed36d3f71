// HeadsCheck: watches what a module does with the result of a colwise layer in its first forward. A
// module that views the rank's part as the whole number of heads, and lets their size be what is
// left, would compute with other heads than the model has, without any error. So would one that
// views all tokens as the part of the sequence that the layer gathered them from.
//
// On the thread of the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "residency/parameter_hooks.h"

namespace coupler::tensor_parallel {

class HeadsCheck : public residency::ParameterHook {
 public:
  // layer: its name; line: of the plan; ranks: of the group; head: the features of one, or a
  // multiple of those, as the plan says; 1: it does not. sequence: the dimension of tokens, if the
  // layer gathered them.
  HeadsCheck(std::string layer, std::string line, int ranks, int64_t head,
             std::optional<int64_t> sequence = {});

  // Watches operations on this result, and on views of it, while this lives.
  static void watch(const at::Tensor& result, const std::shared_ptr<HeadsCheck>& check);

  void around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
              const std::function<void()>& run) override;

 private:
  void check(at::IntArrayRef before, std::vector<int64_t> sizes) const;
  void check_tokens(at::IntArrayRef before, const std::vector<int64_t>& sizes) const;

  const std::string layer_, line_;
  const int ranks_;
  const int64_t head_;
  const std::optional<int64_t> sequence_;
};

// Called by coupler::local_heads: the program knows that it has a part of the heads.
void asked_for_heads();

}  // namespace coupler::tensor_parallel
