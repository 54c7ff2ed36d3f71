// Prompts: texts to the tokens that a CLIP text encoder takes, filled up to its length. Immutable,
// any thread. Sees no LibTorch.
#pragma once

#include <coupler/tokenizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coupler::diffusion {

class Prompts {
 public:
  // folder: with tokenizer.json, or CLIP's vocab.json and merges.txt. vocabulary: of the model.
  // Throws as Tokenizer::open does, and Error(kInvalidArgument) where the tokens around a text are
  // not among the model's.
  Prompts(const std::string& folder, int64_t length, int64_t vocabulary);

  // As many tokens as the model takes. Throws Error(kInvalidArgument) where the text has more,
  // saying what would be lost. what: "prompt", for the message.
  std::vector<int64_t> tokens(const std::string& text, const char* what) const;

 private:
  Tokenizer tokenizer_;
  size_t length_;
  int64_t filler_;
};

}  // namespace coupler::diffusion
