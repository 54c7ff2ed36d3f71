// generate: continues prompts with a language model, token by token, greedily or by sampling.
// Prompts of different lengths run as one batch. Used by the thread that owns the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/language_model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

// Names and meanings as in transformers.
struct GenerationOptions {
  int64_t max_new_tokens = 50;  // fewer if the model's context ends first
  // False: always the most likely token. The next four options apply to true only.
  bool do_sample = false;
  double temperature = 1.0;  // above 0; below 1, likely tokens become likelier
  int64_t top_k = 50;        // keep only this many most likely tokens; 0: all
  double top_p = 1.0;        // keep only the most likely tokens with this total probability
  // Each text has its own generator, seeded by this and its index in the call, so its result does
  // not depend on the other texts in the batch. Unset: a new seed for each call.
  std::optional<uint64_t> seed;
  std::vector<int64_t> end_tokens;  // any of these ends a text
  bool use_cache = true;            // false recomputes all tokens at each step
  // Called with each token as soon as it is generated: the text's index, and the token.
  std::function<void(size_t text, int64_t token)> on_token;

  // For pipelines, which handle text: a callback for each piece of new text once it is final, and
  // the number of prompts that run as one batch.
  std::function<void(size_t text, const std::string& piece)> on_text;
  size_t batch_size = 8;
};

// What was generated for one prompt.
struct GeneratedTokens {
  std::vector<int64_t> tokens;  // the new tokens, including an end token
  bool ended = false;           // by an end token; otherwise by max_new_tokens or the context
};

// Time of generation, for all texts together.
struct GenerationTime {
  // Number of tokens of all texts.
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prompt_seconds = 0;  // until the first new token of each text
  double decode_seconds = 0;  // for the other new_tokens
  // Of decoding alone; 0 if there was none.
  double tokens_per_second() const;
  GenerationTime& operator+=(const GenerationTime& other);

  int64_t texts = 0;  // number of texts
};

// prompts: tokens of each text, at least one. Throws Error(kInvalidArgument) for invalid options, a
// prompt that is empty or longer than the model's context, and tokens outside the vocabulary.
std::vector<GeneratedTokens> generate(LanguageModel& model,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerationOptions& options = {},
                                      GenerationTime* time = nullptr);

// Returns the probability with which sampling chooses each token, as float in the shape of scores,
// [texts, vocabulary]. A pure function.
at::Tensor sampling_probabilities(const at::Tensor& scores, const GenerationOptions& options);

}  // namespace coupler
