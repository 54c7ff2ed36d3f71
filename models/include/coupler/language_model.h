// LanguageModel: GPT-2, GPT-J and LLaMA in plain LibTorch, with the names, shapes and results of
// transformers' GPT2LMHeadModel, GPTJForCausalLM and LlamaForCausalLM, so that their checkpoints
// fit. Ordinary modules: they are loaded, placed, divided and saved like any other.
//
//   const auto config = coupler::ModelConfig::open(folder);
//   std::shared_ptr<coupler::LanguageModel> model;
//   {
//     coupler::EmptyWeights empty;
//     model = coupler::make_language_model(config);
//   }
//   coupler::load_checkpoint_in_model(*model, folder, {}, {.rename =
//   coupler::checkpoint_names(*model)}); at::Tensor scores = model->forward(tokens);
//
// Belongs to one thread at a time. Dropout is left out: these are for inference and fine-tuning.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/model_config.h>
#include <coupler/pipeline_layers.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// Keys and values of tokens that a model has seen, so that each token is computed once. Belongs to
// one text, or one batch of texts of equal length. Used by one thread.
class KeyValueCache {
 public:
  // padding: [batch] of int64, how many of each row's first tokens are fillers, where texts of
  // different length are made equal on their left; undefined: none. room: for so many tokens memory
  // is taken at once; it grows where there are more.
  explicit KeyValueCache(at::Tensor padding = {}, int64_t room = 0);

  int64_t length() const { return length_; }  // tokens seen
  // As given to the constructor.
  const at::Tensor& padding() const { return padding_; }

  // For models. Appends what a layer has computed, [batch, heads, tokens, size], and gives back all
  // it has; and tells that every layer has appended so many tokens.
  std::pair<at::Tensor, at::Tensor> extend(size_t layer, const at::Tensor& key,
                                           const at::Tensor& value);
  // Adds to length().
  void advance(int64_t tokens) { length_ += tokens; }

 private:
  struct Layer {
    at::Tensor key, value;  // [batch, heads, room, size]
  };
  at::Tensor padding_;
  int64_t room_;
  int64_t length_ = 0;
  std::vector<Layer> layers_;
};

struct AttentionPass;

class LanguageModel : public torch::nn::Module, public PipelineLayers {
 public:
  // tokens: [batch, positions] of int64, each below vocabulary(). The last hidden states, [batch,
  // positions, width], of the weights' dtype. With a cache the tokens go on where it ends. Throws
  // Error(kInvalidArgument) where there are more tokens than context().
  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  // [batch, positions, vocabulary]: of each next token, before softmax.
  virtual at::Tensor scores(const at::Tensor& hidden) = 0;
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr) {
    return scores(hidden(tokens, cache));
  }

  // Embeddings, blocks and head, for prepare_pipeline: together forward, without a cache.
  std::vector<PipelineLayer> pipeline_layers() override;

  // How many tokens there are.
  int64_t vocabulary() const { return vocabulary_; }
  int64_t context() const { return context_; }  // the most tokens of a text
  // The class whose modules stay on one device.
  virtual const char* block_class() const = 0;
  // What names of tensors begin with in checkpoints of the whole model, but not in those of its
  // part without a head: "transformer.".
  virtual const char* base_prefix() const = 0;

 protected:
  // name: of the module.
  LanguageModel(const std::string& name, int64_t vocabulary, int64_t context)
      : Module(name), vocabulary_(vocabulary), context_(context) {}
  // hidden() without its checks.
  virtual at::Tensor run(const at::Tensor& tokens, const AttentionPass& pass) = 0;
  // The same and scores in pieces: tokens to hidden states, block by block, last states to scores.
  struct Part {
    std::string name;                // of its first module
    PipelineLayer::Modules modules;  // whose parameters it uses
    std::function<at::Tensor(const at::Tensor&, const AttentionPass&)>
        compute;  // of the part before
  };
  // In order.
  virtual std::vector<Part> parts() = 0;

 private:
  void require_tokens(const at::Tensor& tokens, int64_t seen) const;
  int64_t vocabulary_, context_;
};

// Throws Error(kUnsupported) where the architecture is not there, listing those that are, or where
// config.json asks for something that is not; Error(kInvalidArgument) for keys that are missing or
// wrong.
std::shared_ptr<LanguageModel> make_language_model(const ModelConfig& config);

// For LoadOptions::rename: checkpoints of the model without its head, as GPT-2's own is, and what
// older versions of transformers saved beside the weights (masks, frequencies).
std::function<std::string(const std::string&)> checkpoint_names(const LanguageModel& model);

}  // namespace coupler
