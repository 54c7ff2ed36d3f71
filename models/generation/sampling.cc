#include <ATen/ops/full_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <coupler/generation.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace coupler {

at::Tensor sampling_probabilities(const at::Tensor& scores, const GenerationOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  at::Tensor left = scores.to(at::kFloat).div(options.temperature);
  if (options.top_k > 0) {
    const int64_t k = std::min(options.top_k, left.size(-1));
    const at::Tensor least = std::get<0>(at::topk(left, k)).narrow(-1, k - 1, 1);
    left = left.masked_fill(left.lt(least), kNever);
  }
  if (options.top_p < 1.0) {
    const auto [sorted, order] = at::sort(left, /*dim=*/-1, /*descending=*/false);
    // Cumulative probability from the least likely token up; the likeliest always stays.
    at::Tensor removed = at::softmax(sorted, -1).cumsum(-1).le(1.0 - options.top_p);
    removed.narrow(-1, removed.size(-1) - 1, 1).fill_(false);
    left = left.masked_fill(removed.scatter(-1, order, removed), kNever);
  }
  return at::softmax(left, -1);
}

}  // namespace coupler
