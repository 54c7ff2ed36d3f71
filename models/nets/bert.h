// BertModel: BERT without a head, with transformers' names, shapes and results. For inference only
// (no dropout). Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/model_config.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace coupler {

struct BertParts;

class BertModel : public torch::nn::Module {
 public:
  // Throws Error(kUnsupported) if config.json is not a BERT's, Error(kInvalidArgument) for missing
  // or wrong keys.
  explicit BertModel(const ModelConfig& config);

  // tokens: int64 [batch, positions]; text: bool of the same shape, false for padding. Returns
  // [batch, positions, width].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& text);

  int64_t width() const { return width_; }
  int64_t positions() const { return positions_; }

 private:
  int64_t width_ = 0, positions_ = 0;
  std::shared_ptr<BertParts> parts_;
};

// For LoadOptions::rename: strips the prefix "bert." that checkpoints of models with heads have,
// and drops tensors that the model does not use.
std::string bert_checkpoint_name(const std::string& name);

}  // namespace coupler
