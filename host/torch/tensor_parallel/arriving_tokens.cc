#include "tensor_parallel/arriving_tokens.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace coupler::tensor_parallel {

ArrivingTokens::ArrivingTokens(const at::Tensor& own, int64_t dim, int64_t chunks, Group group)
    : group_(std::move(group)), dim_(dim) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = own.size(dim);
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= group_->size();
  whole_ = own.new_empty(sizes);
  memory_ = whole_.variable_data();
  chunks = std::min(chunks, tokens);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = tokens * i / chunks, size = tokens * (i + 1) / chunks - begin;
    const at::Tensor sent = own.detach().narrow(dim, begin, size).contiguous();
    std::vector<int64_t> of_all = sent.sizes().vec();
    of_all.insert(of_all.begin(), group_->size());
    arriving_.push_back(
        {begin, size, PendingExchange::gather(sent, sent.new_empty(of_all), group_)});
  }
}

std::optional<ArrivingTokens::Chunk> ArrivingTokens::next() {
  if (arriving_.empty()) return std::nullopt;
  Arriving& first = arriving_.front();
  Chunk chunk{first.begin, first.size, first.exchange.wait()};
  arriving_.pop_front();
  place_of(chunk, memory_).copy_(chunk.values);
  return chunk;
}

void ArrivingTokens::finish() {
  while (next()) continue;
}

at::Tensor ArrivingTokens::place_of(const Chunk& chunk, const at::Tensor& all) const {
  return by_rank(all, dim_, group_).narrow(dim_ + 1, chunk.begin, chunk.size);
}

}  // namespace coupler::tensor_parallel
