// A mixture of experts: in place of one large feed-forward layer many small ones, the experts, of
// which a router chooses a few for each token. With parallel.expert, prepare() divides the experts
// over the ranks of an expert group: each keeps some of them and runs them for the tokens of all.
// See docs/parallelism.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

namespace coupler {

namespace expert_parallel {
struct Ranks;
struct Routing;
}  // namespace expert_parallel

// What an expert computes between its two matrices.
enum class ExpertActivation {
  kSwiGlu,  // silu(a) * b of two products, as Mixtral
  kGelu,
  kRelu,
};

// The sizes of a mixture of experts, and how it chooses. A value.
struct MixtureOfExpertsOptions {
  int64_t features = 0;  // of a token, and of the result
  int64_t inner = 0;     // features between an expert's matrices
  int64_t experts = 0;   // a multiple of parallel.expert
  int64_t top_k = 2;     // how many experts each token gets
  // Of all experts.
  ExpertActivation activation = ExpertActivation::kSwiGlu;
  // 0: every token gets its experts. Otherwise an expert takes at most this many times the mean,
  // tokens * top_k / experts, of each rank's tokens, the first ones; the others get nothing from
  // it. At least 1 or 0.
  double capacity_factor = 0;
  // Whether the weights of a token's experts sum to 1, as in Mixtral, or are those of the softmax
  // over all experts, as in the Switch Transformer.
  bool normalize_weights = true;
};

// The layer. Its parameters are router.weight, up and down. Used by one thread at a time.
class MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  // Throws Error(kInvalidArgument) naming an option that does not fit.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);

  // x: [..., features], floating-point; the result has its shape and type. The router computes in
  // fp32 or x's fp64, experts as autocast says. If experts are divided, collective over the expert
  // group, as is backward: each of its ranks calls it as often, with any number of tokens.
  at::Tensor forward(const at::Tensor& x);

  // Of the last forward: experts * sum of (the part of the tokens an expert got * the mean weight
  // that the router gave it), with a gradient; 1 if all get equally many, more otherwise (Switch
  // Transformer, Fedus et al. 2021, equation 4). Add it to the loss with a small factor, such as
  // 0.01. While training, the parts are those of all ranks' tokens, so that the mean over ranks is
  // that of the joined batch if ranks have equally many. Undefined before the first forward. Throws
  // Error(kUsage) if a gradient is expected, but that forward kept none: activation checkpointing
  // keeps only a module's result.
  const at::Tensor& balance_loss() const;
  // Of the last forward: how many tokens chose each expert, [experts] of int64; likewise of all
  // ranks while training.
  const at::Tensor& expert_tokens() const { return expert_tokens_; }
  // Of the last forward, on this rank: how many of its tokens' choices found an expert full.
  int64_t dropped_choices() const { return dropped_choices_; }

  // Draws new values, as torch::nn::Linear does.
  void reset_parameters();

  // What it was made with.
  const MixtureOfExpertsOptions& options() const { return options_; }

  // Logits of the experts: weight [experts, features], without a bias.
  torch::nn::Linear router{nullptr};
  // [experts, inner, features], with kSwiGlu [experts, 2 * inner, features] (a's rows first); after
  // prepare those of this rank's experts.
  at::Tensor up;
  // [experts, features, inner]; likewise.
  at::Tensor down;

 private:
  friend struct expert_parallel::Ranks;

  at::Tensor run_experts(const at::Tensor& rows, at::IntArrayRef rows_of_experts) const;
  void note_balance(const at::Tensor& probabilities, const at::Tensor& chosen,
                    const expert_parallel::Routing& routing);

  const MixtureOfExpertsOptions options_;
  std::shared_ptr<const expert_parallel::Ranks> ranks_;  // null until prepare
  at::Tensor balance_loss_, expert_tokens_;
  int64_t dropped_choices_ = 0;
};
// The module holder.
TORCH_MODULE(MixtureOfExperts);

}  // namespace coupler
