// generate: a language model goes on with texts, token by token: the most likely ones, or drawn at
// random. Texts of different length are run together. Used by the thread that owns the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/language_model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

// transformers' names and meanings.
struct GenerationOptions {
  int64_t max_new_tokens = 50;  // fewer where the model's context ends before
  // False: the most likely token each time; the next four are for true.
  bool do_sample = false;
  double temperature = 1.0;  // above 0; below 1 likely tokens become likelier
  int64_t top_k = 50;        // only so many of the likeliest; 0: all
  double top_p = 1.0;        // only the likeliest that have this much probability together
  // Each text draws from a generator of its own, seeded by this and its number in the call, so that
  // it does not matter which others run with it. Unset: another each time.
  std::optional<uint64_t> seed;
  std::vector<int64_t> end_tokens;  // a text ends with any of these
  bool use_cache = true;            // false computes all tokens anew each time
  // Called with each token as soon as it is there: which text, and the token.
  std::function<void(size_t text, int64_t token)> on_token;

  // For pipelines, which know of texts: called with each piece of new text as soon as it is final;
  // and how many prompts run together.
  std::function<void(size_t text, const std::string& piece)> on_text;
  size_t batch_size = 8;
};

// What was generated for one prompt.
struct GeneratedTokens {
  std::vector<int64_t> tokens;  // the new ones, an end token included
  bool ended = false;           // by an end token; else by max_new_tokens or the context
};

// How long it took, of all texts together.
struct GenerationTime {
  // How many, of all texts.
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prompt_seconds = 0;  // until the first new token of each text
  double decode_seconds = 0;  // for the other new_tokens
  // Of decoding alone; 0 where there was none.
  double tokens_per_second() const;
  GenerationTime& operator+=(const GenerationTime& other);

  int64_t texts = 0;  // how many
};

// prompts: tokens of each text, at least one. Throws Error(kInvalidArgument) for options that make
// no sense, a prompt that is empty or longer than the model's context, and tokens that the model
// does not have.
std::vector<GeneratedTokens> generate(LanguageModel& model,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerationOptions& options = {},
                                      GenerationTime* time = nullptr);

// With which probability sampling takes each token: of scores [texts, vocabulary] the same shape,
// of float. A pure function.
at::Tensor sampling_probabilities(const at::Tensor& scores, const GenerationOptions& options);

}  // namespace coupler
