// SentenceEncoder: sentence embeddings from a BERT model, equal to those of Python's
// sentence-transformers for the same folder (all-MiniLM-L6-v2 and similar): WordPiece tokens, then
// mean, first or maximum of the last hidden states, normalized to length 1 if the folder says so.
//
//   auto encoder = coupler::SentenceEncoder::open("all-MiniLM-L6-v2");
//   at::Tensor embeddings = encoder.encode({"a man eats", "a woman is having lunch"});
//
// Used by one thread. Errors are coupler::Error and say what to do.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/pipeline.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace coupler {

class BertModel;

class SentenceEncoder {
 public:
  // Throws as pipeline does, and Error(kUnsupported) for an unsupported pooling mode or module.
  static SentenceEncoder open(const std::string& folder, const PretrainedOptions& options = {});

  // Returns [sentences, width] of float, in host memory, in the order given. Sentences are
  // truncated to the model's maximum length. batch_size: how many sentences of similar length run
  // together.
  at::Tensor encode(const std::vector<std::string>& sentences, size_t batch_size = 32) const;

  // The size of an embedding; the tokenizer; where the weights are.
  int64_t width() const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const DeviceMap& device_map() const { return placed_.device_map(); }

 private:
  enum class Pooling { kMean, kFirst, kMax };
  struct Recipe {  // how the folder's configuration processes hidden states
    Pooling pooling = Pooling::kMean;
    bool normalize = false;
    size_t most_tokens = 0;
  };
  static Recipe read_recipe(const std::string& folder, int64_t positions);
  SentenceEncoder(Tokenizer tokenizer, std::shared_ptr<BertModel> model, DispatchedModel placed,
                  Recipe recipe)
      : tokenizer_(std::move(tokenizer)),
        model_(std::move(model)),
        placed_(std::move(placed)),
        recipe_(recipe) {}

  Tokenizer tokenizer_;
  std::shared_ptr<BertModel> model_;
  DispatchedModel placed_;
  Recipe recipe_;
};

}  // namespace coupler
