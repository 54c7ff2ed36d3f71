// What to quantize, and a report of the error (coupler/quantize.h). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace coupler {

// The effect of quantization on one weight.
struct QuantizedLayer {
  std::string name;           // of the weight
  double relative_error = 0;  // ||w - quantized|| / ||w||, Frobenius norms
  double max_error = 0;       // the largest |w - quantized|
  uint64_t bytes_before = 0;  // in the model's unquantized dtype
  uint64_t bytes_after = 0;   // including scales and zero points
};

// The effect of quantization on a model.
struct QuantizationReport {
  int bits = 8;                        // 8 or 4
  int64_t group_size = 0;              // with 4 bits; 0: one scale per output
  std::vector<QuantizedLayer> layers;  // largest relative error first
  bool reused = false;                 // some were read packed from an offload folder
};

// How weights are quantized.
struct QuantizeOptions {
  int bits = 8;  // or 4
  // With 4 bits, the number of inputs that share a scale: 32, 64, 128 or 256. Must divide the
  // number of inputs of every quantized layer. 8 bits use one scale per output.
  int64_t group_size = 64;
  // Layers that are not quantized: parts of a weight's dotted name, such as "lm_head" or
  // "layers.0.mlp". Each must match at least one.
  std::vector<std::string> skip;
  // Called once, when all weights are quantized.
  std::function<void(const QuantizationReport&)> report;
  // The program's own classes whose parameter "weight" is a linear layer's: [out, in] like
  // torch::nn::Linear, and [in, out] as in GPT-2. Names as in no_split_module_classes.
  std::vector<std::string> linear_classes;
  std::vector<std::string> transposed_classes;
};

}  // namespace coupler
