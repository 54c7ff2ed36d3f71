// Strips: an image divided into strips of rows. Layers consume and free one strip at a time, so no
// full activation is in memory twice. The division depends only on the image's shape. Used by one
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "diffusion/parts.h"

namespace coupler::diffusion {

using Strips = std::vector<at::Tensor>;  // from the top, each [batch, channels, rows, width]

// Copies the image.
Strips divided(const at::Tensor& image, int64_t rows);

// A copy of a convolution's weights for many strips, so that weights on disk are fetched only once.
struct Kernel {
  explicit Kernel(torch::nn::Conv2d& layer);
  at::Tensor weight, bias;
};

// silu(norm(image)) with a GroupNorm: each channel's scale and shift, from the statistics of all
// strips.
struct NormedSilu {
  NormedSilu(torch::nn::GroupNorm& norm, const Strips& image);
  at::Tensor scale, shift;  // [batch, channels, 1, 1]
  // In place.
  void apply(at::Tensor& rows) const;
};

// A 3 × 3 convolution of strip `index`. before: applied first if given; twice: upsamples by 2
// before the convolution. Also reads the adjacent strips.
at::Tensor convolve(const Strips& image, size_t index, const Kernel& kernel,
                    const NormedSilu* before, bool twice = false);

// The same for all strips; each is freed as soon as possible.
Strips convolve(Strips image, const Kernel& kernel, const NormedSilu* before, bool twice = false);

}  // namespace coupler::diffusion
