// BertModel: BERT without a head, with transformers' names, shapes and results. Belongs to one
// thread at a time; for inference: dropout is left out.
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
  // Throws Error(kUnsupported) where config.json is no BERT's, Error(kInvalidArgument) for keys
  // that are missing or wrong.
  explicit BertModel(const ModelConfig& config);

  // tokens: [batch, positions] of int64; text: the same shape of bool, false for fillers. [batch,
  // positions, width].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& text);

  int64_t width() const { return width_; }
  int64_t positions() const { return positions_; }

 private:
  int64_t width_ = 0, positions_ = 0;
  std::shared_ptr<BertParts> parts_;
};

// For LoadOptions::rename: checkpoints of models with heads, whose BERT is below "bert.", and what
// else is in them.
std::string bert_checkpoint_name(const std::string& name);

}  // namespace coupler
