#include "evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <coupler/quantize.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "text.h"

namespace {

double loss_of(GPT& model, Text& text, size_t samples) {
  constexpr size_t kBatch = 16;
  const at::NoGradGuard no_grad;
  const size_t all = *text.size(), count = std::min(samples, all);
  double sum = 0;
  for (size_t first = 0; first < count; first += kBatch) {
    std::vector<size_t> indices;
    for (size_t i = first; i < std::min(first + kBatch, count); ++i)
      indices.push_back(i * all / count);
    const auto batch = text.get_batch(indices);
    const at::Tensor loss =
        at::cross_entropy_loss(model->forward(batch.data).flatten(0, 1), batch.target.flatten());
    sum += loss.item<double>() * static_cast<double>(indices.size());
  }
  return sum / static_cast<double>(count);
}

}  // namespace

std::vector<Evaluation> evaluate(const GPT& trained, const GPTOptions& options,
                                 const std::string& text, int64_t samples) {
  Text unseen(text, options.sequence);
  std::vector<Evaluation> results;
  for (const auto& [name, bits] : {std::pair{"float32", 0}, {"int8", 8}, {"int4", 4}}) {
    GPT copy(options);
    {
      const at::NoGradGuard no_grad;
      const auto values = trained->named_parameters();
      for (const auto& item : copy->named_parameters()) item.value().copy_(values[item.key()]);
    }
    std::optional<coupler::DispatchedModel> quantized;
    if (bits != 0) quantized = coupler::quantize(copy, {.bits = bits, .group_size = 64});
    const double loss = loss_of(copy, unseen, static_cast<size_t>(samples));
    results.push_back({name, loss, std::exp(loss)});
  }
  return results;
}
