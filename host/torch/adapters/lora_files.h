// PEFT's adapter files: adapter_config.json and adapter_model.safetensors. Plain functions, one
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace coupler::adapters {

// What of PEFT's LoraConfig we know.
struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 8;
  bool rslora = false;
  double dropout = 0;
  bool transposed = false;  // fan_in_fan_out: base weights are [in, out]
  std::vector<std::string> target_modules, exclude_modules;
  std::string target_pattern;
  std::map<std::string, int64_t> rank_pattern;  // of layers with another rank
  std::string base;                             // the base model's name

  int64_t rank_of(const std::string& layer) const;
};

struct AdapterWeights {
  at::Tensor a, b;  // [rank, in], [out, rank]
};

struct AdapterFiles {
  AdapterConfig config;
  std::map<std::string, AdapterWeights> layers;  // by the dotted name of the layer
};

// Throws Error(kIo) if a file is missing or damaged, Error(kUnsupported) naming a key of the
// configuration, or a tensor, whose effect is not supported, Error(kInvalidArgument) for values of
// the wrong type, or A and B that do not fit each other.
AdapterFiles read_adapter(const std::string& folder);

// Replaces the files when the new ones are complete. Tensors on any device. Throws Error(kIo).
void write_adapter(const std::string& folder, const AdapterFiles& files);

}  // namespace coupler::adapters
