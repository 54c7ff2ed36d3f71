// How well a trained GPT foretells a text it was not trained on, as it is and with its weights
// quantised. Runs on the calling process alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

struct Evaluation {
  const char* weights = "";  // "float32", "int8", "int4"
  double loss = 0;           // mean cross entropy of a byte, natural logarithm
  double perplexity = 0;     // e^loss
};

// The model as it is, then copies of it whose linear weights have 8 and 4 bits, on at most
// `samples` stretches of the text, evenly apart. trained: whole, in host memory.
std::vector<Evaluation> evaluate(const GPT& trained, const GPTOptions& options,
                                 const std::string& text, int64_t samples);
