// Rotary positions: the sines and cosines of a forward pass, and the two ways to rotate by them.
// Used by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler {

class JsonObject;

// LLaMA's frequencies, float [size / 2], from config.json's "rope_parameters" (or the older
// "rope_scaling" and "rope_theta"). Throws Error(kUnsupported) for unsupported kinds.
at::Tensor rotary_frequencies(const JsonObject& config, int64_t size);
// Without scaling: base^(-2i / size).
at::Tensor rotary_frequencies(int64_t size, double base);

enum class Turned { kNeighbours, kHalves };  // pairs of coordinates: GPT-J's, LLaMA's

class Rotation {
 public:
  // positions: [tokens] or [batch, tokens].
  Rotation(const at::Tensor& positions, const at::Tensor& frequencies, Turned turned,
           at::ScalarType type);
  // x: [batch, heads, tokens, size]; rotates the first coordinates, twice as many as there are
  // frequencies.
  at::Tensor turn(const at::Tensor& x) const;

 private:
  Turned turned_;
  at::Tensor cosine_, sine_;  // [batch or 1, 1, tokens, rotated]
};

}  // namespace coupler
