// PromptTokenizer: turns text into tokens for a CLIP text encoder, padded to its length. Immutable;
// safe to use from any thread. Does not depend on LibTorch.
#pragma once

#include <coupler/tokenizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::diffusion {

class PromptTokenizer {
 public:
  // folder: has tokenizer.json, or CLIP's vocab.json and merges.txt. vocabulary: the model's size.
  // Throws as Tokenizer::open does, and Error(kInvalidArgument) if the start or end token is not in
  // the model's vocabulary, or the pad token is not in the tokenizer's.
  PromptTokenizer(const std::string& folder, int64_t length, int64_t vocabulary);

  // Exactly as many tokens as the model takes. Throws Error(kInvalidArgument) if the text has more;
  // the message quotes what would be lost. what: "prompt", for the message.
  std::vector<int64_t> tokens(const std::string& text, const char* what) const;

 private:
  Tokenizer tokenizer_;
  size_t length_;
  int64_t filler_;
};

}  // namespace coupler::diffusion
