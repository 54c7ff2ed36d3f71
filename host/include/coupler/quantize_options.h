// What is to be quantised, and what that lost (coupler/quantize.h). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace coupler {

// What quantising did to one weight.
struct QuantizedLayer {
  std::string name;           // of the weight
  double relative_error = 0;  // ||w - quantised|| / ||w||, Frobenius norms
  double max_error = 0;       // the largest |w - quantised|
  uint64_t bytes_before = 0;  // of the dtype that the model would have
  uint64_t bytes_after = 0;   // scales and zeros included
};

// What quantising did to a model.
struct QuantizationReport {
  int bits = 8;                        // 8 or 4
  int64_t group_size = 0;              // of 4 bits; 0: one scale an output
  std::vector<QuantizedLayer> layers;  // the largest relative error first
  bool reused = false;                 // some came packed from an offload folder
};

// How weights are quantised.
struct QuantizeOptions {
  int bits = 8;  // or 4
  // Of 4 bits: 32, 64, 128 or 256 inputs have a scale of their own. Has to divide the inputs of
  // every layer that is quantised. 8 bits have one scale an output.
  int64_t group_size = 64;
  // Layers that stay: parts of a weight's dotted name, such as "lm_head" or "layers.0.mlp". Each
  // has to name one.
  std::vector<std::string> skip;
  // Called once, when all is quantised.
  std::function<void(const QuantizationReport&)> report;
  // Classes of the program's own whose parameter "weight" is a linear layer's: [out, in] beside
  // torch::nn::Linear, and [in, out] as GPT-2 has them. Names as no_split_module_classes has them.
  std::vector<std::string> linear_classes;
  std::vector<std::string> transposed_classes;
};

}  // namespace coupler
