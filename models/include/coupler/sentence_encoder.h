// SentenceEncoder: embeddings of sentences by a BERT, as Python's sentence-transformers makes them
// out of the same folder (all-MiniLM-L6-v2 and its kind): WordPiece tokens, the mean of the last
// hidden states or the first of them, of length 1 where the folder says so.
//
//   auto encoder = coupler::SentenceEncoder::open("all-MiniLM-L6-v2");
//   at::Tensor embeddings = encoder.encode({"a man eats", "somebody is having lunch"});
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
  // Throws as pipeline does; Error(kUnsupported) for a pooling or a module that is not there.
  static SentenceEncoder open(const std::string& folder, const PretrainedOptions& options = {});

  // [sentences, width] of float, in host memory, in the order given. What a sentence has beyond the
  // model's length is left out. batch_size: so many run together, of similar length.
  at::Tensor encode(const std::vector<std::string>& sentences, size_t batch_size = 32) const;

  // Numbers of an embedding; what sentences become tokens by; where the weights lie.
  int64_t width() const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const DeviceMap& device_map() const { return placed_.device_map(); }

 private:
  enum class Pooling { kMean, kFirst, kMax };
  struct Recipe {  // what the folder says is done with hidden states
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
