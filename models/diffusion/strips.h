// Strips: an image as strips of its rows, so that layers can use and give up one after the other,
// and no activation of all of it is in memory twice. How an image is divided depends on its shape
// alone. Used by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "diffusion/parts.h"

namespace coupler::diffusion {

using Strips = std::vector<at::Tensor>;  // from the top, each [batch, channels, rows, width]

// A copy.
Strips divided(const at::Tensor& image, int64_t rows);

// A convolution's weights for many strips: a copy, so that they are fetched once where they lie on
// a disk.
struct Kernel {
  explicit Kernel(torch::nn::Conv2d& layer);
  at::Tensor weight, bias;
};

// silu(norm(image)), of a GroupNorm: what each channel is multiplied by and what is added, from the
// statistics of all strips.
struct NormedSilu {
  NormedSilu(torch::nn::GroupNorm& norm, const Strips& image);
  at::Tensor scale, shift;  // [batch, channels, 1, 1]
  // In place.
  void apply(at::Tensor& rows) const;
};

// A convolution of 3 × 3 of strip `index`, of what `before` makes of the image where it is given,
// enlarged twice where wanted. The strips beside it are read, too.
at::Tensor convolve(const Strips& image, size_t index, const Kernel& kernel,
                    const NormedSilu* before, bool twice = false);

// The same of all strips, which are given up as soon as they are done with.
Strips convolve(Strips image, const Kernel& kernel, const NormedSilu* before, bool twice = false);

}  // namespace coupler::diffusion
