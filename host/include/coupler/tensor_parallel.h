// Tensor parallelism: the layers of a model divided over the ranks of a tensor group, each of which
// keeps and computes a part. parallel.tensor sets the size of the group, and a *plan* says how
// layers are divided: lines of a pattern of module names and a style. prepare() applies it to
// unmodified modules: torch::nn::Linear and Embedding, modules with a matrix "weight" [out, in]
// (Conv1D: [in, out]) that multiply by it, TorchScript's included. See docs/parallelism.md.
//
//   colwise         outputs are divided, and so is what follows, up to a rowwise layer
//   rowwise         inputs are divided; the ranks' results are summed
//   vocab           an embedding's rows are divided; the head of a language model as colwise
//   colwise_gather  as colwise, but the result is put together: for a head whose logits are needed
//   rowwise_split   as rowwise, but takes whole inputs
//   replicate       not divided (as modules that no line names)
//   sum_gradients   not divided, but works on divided values: a norm of each head
//   shared          not divided, but its results are used with divided ones: keys of one head
//   sequence        with parallel.sequence, works on a part of the tokens: norms; else as replicate
//   gather_sequence likewise, but takes a part of the tokens and makes all: an undivided head
//
// "colwise/3" divides each of three blocks of outputs: queries, keys and values in one weight. The
// words of transformers' tp_plan for these are understood, too.
//
// With parallel.sequence, each rank has a part of the tokens between divided layers, of [batch,
// tokens, features]: colwise layers gather them, rowwise layers and embeddings make parts.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler {

// One line of a plan.
struct TensorRule {
  std::string pattern;   // of module names: * any characters except dots, ** any characters
  std::string style;     // see above
  int64_t multiple = 1;  // features that must stay on one rank together, such as a head's
};
// The lines of a plan; their order does not matter.
using TensorPlan = std::vector<TensorRule>;

// Base class of modules that know how their layers are divided, alone or as part of a model.
// parallel.tensor_plan takes precedence.
class TensorParallelLayers {
 public:
  virtual ~TensorParallelLayers() = default;
  // For groups of this many ranks. Patterns are of names below this module; "" is the module.
  virtual TensorPlan tensor_plan(int ranks) const = 0;
};

// How many of a layer's heads this rank computes: those of `heads` divided by the size of the
// tensor group. For forward functions that reshape by a number of heads. Throws
// Error(kInvalidArgument) if they do not divide. [any-thread]
int64_t local_heads(int64_t heads);

// How many ranks' parts the sequence between divided layers consists of: the size of the tensor
// group with parallel.sequence, else 1. [any-thread]
int sequence_ranks();

// This rank's part of the tokens of x, which has the same values on every rank of the tensor group:
// for what goes between divided layers and is not the result of one. Backward gathers the gradients
// of all tokens. Without parallel.sequence: x. dim: of the tokens; -1 is the last. Throws
// Error(kInvalidArgument) if they do not divide, Error(kUsage) if no model was divided before.
// Collective in backward.
at::Tensor sequence_part(const at::Tensor& x, int64_t dim = 1);

// The tokens of every rank's part, for what all ranks then compute alike: backward takes the
// gradients of this rank's tokens. Without parallel.sequence: part. Throws as sequence_part does.
// Collective.
at::Tensor whole_sequence(const at::Tensor& part, int64_t dim = 1);

// For parallel_cross_entropy, as torch::nn::CrossEntropyLoss has them.
struct ParallelCrossEntropyOptions {
  at::Reduction::Reduction reduction = at::Reduction::Mean;  // None: the loss of each row
  int64_t ignore_index = -100;                               // such targets do not count
};

// The cross-entropy of logits of which every rank has its part of the vocabulary, the result of a
// head of the style vocab: [rows, part], floating-point; target: [rows], int64, of the whole
// vocabulary. The result, fp32 or the logits' fp64, is the same on every rank, none of which needs
// all logits. Without a tensor group: torch's. Collective over the tensor group.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const ParallelCrossEntropyOptions& options = {});

// torch::nn::Linear that names its style itself: colwise, or colwise_gather with gather_output.
class ColumnParallelLinearImpl : public torch::nn::LinearImpl, public TensorParallelLayers {
 public:
  // As torch::nn::Linear, with a bias.
  ColumnParallelLinearImpl(int64_t in_features, int64_t out_features, bool gather_output = false)
      : ColumnParallelLinearImpl(torch::nn::LinearOptions(in_features, out_features),
                                 gather_output) {}
  // gather_output: whether every rank gets all outputs.
  explicit ColumnParallelLinearImpl(const torch::nn::LinearOptions& linear,
                                    bool gather_output = false)
      : LinearImpl(linear), gather_output_(gather_output) {}
  TensorPlan tensor_plan(int ranks) const override;

 private:
  bool gather_output_;
};
// The module holder.
TORCH_MODULE(ColumnParallelLinear);

// Likewise: rowwise, or rowwise_split without input_is_parallel.
class RowParallelLinearImpl : public torch::nn::LinearImpl, public TensorParallelLayers {
 public:
  // As torch::nn::Linear, with a bias.
  RowParallelLinearImpl(int64_t in_features, int64_t out_features, bool input_is_parallel = true)
      : RowParallelLinearImpl(torch::nn::LinearOptions(in_features, out_features),
                              input_is_parallel) {}
  // input_is_parallel: whether each rank gives its own inputs, and not all.
  explicit RowParallelLinearImpl(const torch::nn::LinearOptions& linear,
                                 bool input_is_parallel = true)
      : LinearImpl(linear), input_is_parallel_(input_is_parallel) {}
  TensorPlan tensor_plan(int ranks) const override;

 private:
  bool input_is_parallel_;
};
// The module holder.
TORCH_MODULE(RowParallelLinear);

// torch::nn::Embedding whose rows are divided.
class VocabParallelEmbeddingImpl : public torch::nn::EmbeddingImpl, public TensorParallelLayers {
 public:
  using EmbeddingImpl::EmbeddingImpl;
  TensorPlan tensor_plan(int ranks) const override;
};
// The module holder.
TORCH_MODULE(VocabParallelEmbedding);

}  // namespace coupler
