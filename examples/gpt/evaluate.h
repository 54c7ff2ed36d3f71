// Evaluates a trained GPT on a text it was not trained on, with its original and with quantized
// weights. Runs only on the calling process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

struct Evaluation {
  const char* weights = "";  // "float32", "int8", "int4"
  double loss = 0;           // mean cross entropy per byte, natural logarithm
  double perplexity = 0;     // e^loss
};

// Evaluates the model, then copies with 8-bit and 4-bit linear weights, on at most `samples` evenly
// spaced stretches of the text. trained: has its full parameters, in host memory.
std::vector<Evaluation> evaluate(const GPT& trained, const GPTOptions& options,
                                 const std::string& text, int64_t samples);
