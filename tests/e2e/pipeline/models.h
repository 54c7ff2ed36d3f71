// Models for the pipeline checks, in doubles, and the training of the unsplit model, which a
// pipeline's must equal. Every process makes the same models. Used by one thread.
#pragma once

#include <coupler/pipeline_parallel.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "check.h"
#include "model.h"  // examples/gpt

// A new seeded model in doubles.
GPT make_gpt_model();
torch::nn::Sequential make_batch_norm_model();

// The head shares the embedding's weight. Two tensors pass between layers: hidden states, and the
// tokens themselves; the head only uses where they are 0.
struct TiedImpl : torch::nn::Module, coupler::PipelineLayers {
  explicit TiedImpl(int64_t blocks = 3);
  torch::Tensor forward(const torch::Tensor& tokens);
  std::vector<coupler::PipelineLayer> pipeline_layers() override;
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Linear norm{nullptr};
};
TORCH_MODULE(Tied);
Tied make_tied_model(int64_t blocks = 3);

struct TokenBatch {
  torch::Tensor tokens, targets;  // [rows, 6] of int64 below 17
};
TokenBatch token_batch(int step, int64_t rows);
torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

// One backward per micro-batch, in order, weighted by rows: what a pipeline must equal. Returns the
// batch's loss.
template <class Model>
double train_unsplit(Model& model, const torch::Tensor& input, const torch::Tensor& target,
                     int64_t micro_batches, const coupler::PipelineParallel::Loss& loss) {
  const auto inputs = input.tensor_split(micro_batches),
             targets = target.tensor_split(micro_batches);
  double whole = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double weight =
        static_cast<double>(inputs[i].size(0)) / static_cast<double>(input.size(0));
    const auto one = loss(model->forward(inputs[i]), targets[i]);
    whole += one.template item<double>() * weight;
    (one * weight).backward();
  }
  return whole;
}

// The names of the layers at which `stages` parts of about equal length begin.
std::vector<std::string> even_points(coupler::PipelineLayers& model, int stages);

std::vector<Check> pipeline_parity_checks();
std::vector<Check> pipeline_saving_checks();
std::vector<Check> pipeline_misuse_checks();
