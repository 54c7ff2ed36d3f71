#include "diffusion/strips.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

namespace coupler::diffusion {

Strips divided(const at::Tensor& image, int64_t rows) {
  Strips strips;
  for (int64_t at = 0; at < image.size(2); at += rows)
    strips.push_back(image.narrow(2, at, std::min(rows, image.size(2) - at))
                         .clone(at::MemoryFormat::Contiguous));
  return strips;
}

Kernel::Kernel(torch::nn::Conv2d& layer)
    : weight(layer->weight.clone()), bias(layer->bias.clone()) {}

// Combines variances by Chan's method, in double, so that the result does not depend on the number
// of strips.
NormedSilu::NormedSilu(torch::nn::GroupNorm& norm, const Strips& image) {
  const int64_t batch = image[0].size(0), channels = image[0].size(1);
  const int64_t groups = norm->options.num_groups();
  at::Tensor mean, square;  // [batch, groups]: mean, and sum of squared distances from it
  double count = 0;
  for (const at::Tensor& strip : image) {
    auto [variance, average] =
        at::var_mean(strip.view({batch, groups, -1}), at::IntArrayRef{-1}, /*unbiased=*/false);
    variance = variance.to(at::kDouble);
    average = average.to(at::kDouble);
    const double own = static_cast<double>(strip.numel()) / static_cast<double>(batch * groups);
    if (count == 0) {
      mean = average;
      square = variance.mul(own);
    } else {
      const at::Tensor apart = average.sub(mean);
      square = square.add(variance, own).add(apart.square(), count * own / (count + own));
      mean = mean.add(apart, own / (count + own));
    }
    count += own;
  }
  const at::Tensor rate = square.div(count).add(norm->options.eps()).rsqrt();
  const auto of_channels = [&](const at::Tensor& of_groups) {
    return of_groups.repeat_interleave(channels / groups, 1);
  };
  const at::Tensor factor = of_channels(rate).mul(norm->weight.to(at::kDouble));
  const at::Tensor added = norm->bias.to(at::kDouble).sub(of_channels(mean).mul(factor));
  const auto shaped = [&](const at::Tensor& x) {
    return x.to(image[0].scalar_type()).view({batch, channels, 1, 1});
  };
  scale = shaped(factor);
  shift = shaped(added);
}

void NormedSilu::apply(at::Tensor& rows) const {
  rows.mul_(scale).add_(shift);
  at::silu_(rows);
}

at::Tensor convolve(const Strips& image, size_t index, const Kernel& kernel,
                    const NormedSilu* before, bool twice) {
  const at::Tensor& own = image[index];
  const int64_t rows = own.size(2), width = own.size(3);
  // Adds the neighboring strips' rows above and below, or zeros.
  at::Tensor input = at::empty({own.size(0), own.size(1), rows + 2, width}, own.options());
  const bool first = index == 0, last = index + 1 == image.size();
  input.narrow(2, 1, rows).copy_(own);
  if (!first) {
    const at::Tensor& above = image[index - 1];
    input.narrow(2, 0, 1).copy_(above.narrow(2, above.size(2) - 1, 1));
  } else {
    input.narrow(2, 0, 1).zero_();
  }
  if (!last) {
    input.narrow(2, rows + 1, 1).copy_(image[index + 1].narrow(2, 0, 1));
  } else {
    input.narrow(2, rows + 1, 1).zero_();
  }
  if (before != nullptr) {
    before->apply(input);
    if (first) input.narrow(2, 0, 1).zero_();
    if (last) input.narrow(2, rows + 1, 1).zero_();
  }
  if (twice) {
    input = at::upsample_nearest2d(input, {2 * (rows + 2), 2 * width});
    input = input.narrow(2, 1, 2 * rows + 2).contiguous();
  }
  return at::conv2d(input, kernel.weight, kernel.bias, /*stride=*/1,
                    /*padding=*/at::IntArrayRef{0, 1});
}

Strips convolve(Strips image, const Kernel& kernel, const NormedSilu* before, bool twice) {
  Strips result;
  for (size_t i = 0; i < image.size(); ++i) {
    result.push_back(convolve(image, i, kernel, before, twice));
    if (i > 0) image[i - 1].reset();
  }
  return result;
}

}  // namespace coupler::diffusion
