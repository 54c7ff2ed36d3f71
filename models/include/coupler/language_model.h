// LanguageModel: decoder-only language models in plain LibTorch, with the names, shapes and results
// of transformers' classes (GPT2LMHeadModel, LlamaForCausalLM, …), so that their checkpoints load.
// They are ordinary modules, loaded, placed, sharded and saved like any other. Architectures by
// config.json's model_type: gemma, gemma2, gemma3_text, gpt2, gpt_neox, gptj, llama, mistral, opt,
// phi, qwen2, qwen3.
//
//   const auto config = coupler::ModelConfig::open(folder);
//   std::shared_ptr<coupler::LanguageModel> model;
//   {
//     coupler::EmptyWeights empty;
//     model = coupler::make_language_model(config);
//   }
//   coupler::load_checkpoint_in_model(
//       *model, folder, {}, {.rename = coupler::checkpoint_names(*model)});
//   at::Tensor logits = model->forward(tokens);
//
// Used by one thread at a time. There is no dropout: the models are for inference and fine-tuning.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/model_config.h>
#include <coupler/pipeline_layers.h>
#include <coupler/tensor_parallel.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// Caches keys and values of processed tokens, so that each token is computed once. Belongs to one
// text, or one batch of texts of equal length. Used by one thread.
class KeyValueCache {
 public:
  // padding: [batch] of int64, the number of leading padding tokens of each row, if texts of
  // different lengths are padded on the left; undefined: none. room: the number of tokens for which
  // memory is allocated up front; it grows if there are more.
  explicit KeyValueCache(at::Tensor padding = {}, int64_t room = 0);

  int64_t length() const { return length_; }  // tokens processed
  // As given to the constructor.
  const at::Tensor& padding() const { return padding_; }

  // For models. Appends a layer's new keys and values, [batch, heads, tokens, size], and returns
  // all of that layer's.
  std::pair<at::Tensor, at::Tensor> extend(size_t layer, const at::Tensor& key,
                                           const at::Tensor& value);
  // Adds to length(), after every layer has appended that many tokens.
  void advance(int64_t tokens) { length_ += tokens; }

 private:
  struct Layer {
    at::Tensor key, value;  // [batch, heads, room, size]
  };
  at::Tensor padding_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Layer> layers_;
};

struct AttentionPass;

class LanguageModel : public torch::nn::Module, public PipelineLayers, public TensorParallelLayers {
 public:
  // tokens: [batch, positions] of int64, each below vocabulary(). Returns the last hidden states,
  // [batch, positions, width], in the weights' dtype; with parallel.sequence, those of this rank's
  // positions. With a cache, the tokens continue after those in it. Throws Error(kInvalidArgument)
  // if there are more tokens than context().
  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  // Returns the logits of the next token at each position: [batch, positions, vocabulary].
  virtual at::Tensor logits(const at::Tensor& hidden) = 0;
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr) {
    return logits(hidden(tokens, cache));
  }

  // Embeddings, blocks and head, for prepare_pipeline; in sequence they are forward without a
  // cache.
  std::vector<PipelineLayer> pipeline_layers() override;

  // The number of tokens in the vocabulary.
  int64_t vocabulary() const { return vocabulary_; }
  int64_t context() const { return context_; }  // maximum number of tokens of a text
  // The class whose modules must stay on one device.
  virtual const char* block_class() const = 0;
  // The prefix of tensor names in checkpoints of the whole model, but not in those of the model
  // without its head: "transformer.".
  virtual const char* base_prefix() const = 0;
  // The name of the head's module: "lm_head".
  virtual const char* head_name() const = 0;

 protected:
  // name: of the module.
  LanguageModel(const std::string& name, int64_t vocabulary, int64_t context)
      : Module(name), vocabulary_(vocabulary), context_(context) {}
  // One part of the model: tokens to hidden states, one block, or the norm before the head.
  struct Part {
    std::string name;                // of its first module
    PipelineLayer::Modules modules;  // whose parameters it uses; the last part's include the head
    // Takes the previous part's output; the first takes tokens.
    std::function<at::Tensor(const at::Tensor&, AttentionPass&)> compute;
  };
  // Called by constructors, in order.
  void add_part(Part part) { parts_.push_back(std::move(part)); }

 private:
  void require_tokens(const at::Tensor& tokens, int64_t seen) const;
  int64_t vocabulary_, context_;
  std::vector<Part> parts_;
};

// Throws Error(kUnsupported) if the architecture is not supported, listing those that are, or if
// config.json requires an unsupported feature; Error(kInvalidArgument) for missing or invalid keys.
std::shared_ptr<LanguageModel> make_language_model(const ModelConfig& config);

// For LoadOptions::rename: handles checkpoints of the model without its head, such as GPT-2's own,
// and skips non-weights saved by older versions of transformers (masks, frequencies).
std::function<std::string(const std::string&)> checkpoint_names(const LanguageModel& model);

}  // namespace coupler
