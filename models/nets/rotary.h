// Rotary positions: sines and cosines of a pass, and two ways of turning by them. Used by one
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coupler {

class JsonObject;

// [size / 2] of float: LLaMA's, as config.json's "rope_parameters" (or "rope_scaling" and
// "rope_theta" of before) say. Throws Error(kUnsupported) for kinds that are not there.
at::Tensor rotary_frequencies(const JsonObject& config, int64_t size);
// Without anything special: 10000^(-2i / size).
at::Tensor rotary_frequencies(int64_t size, double base);

enum class Turned { kNeighbours, kHalves };  // which two coordinates: GPT-J's, LLaMA's

class Rotation {
 public:
  // positions: [tokens] or [batch, tokens].
  Rotation(const at::Tensor& positions, const at::Tensor& frequencies, Turned turned,
           at::ScalarType type);
  // x: [batch, heads, tokens, size]; as many of the first coordinates are turned as there are
  // frequencies twice.
  at::Tensor turn(const at::Tensor& x) const;

 private:
  Turned turned_;
  at::Tensor cosine_, sine_;  // [batch or 1, 1, tokens, turned]
};

}  // namespace coupler
