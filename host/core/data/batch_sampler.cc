#include "data/batch_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace coupler::data {
namespace {

size_t global_batch(const BatchSamplerOptions& spec) {
  if (spec.world_size < 1 || spec.rank < 0 || spec.rank >= spec.world_size)
    fail_argument(fmt::format("invalid rank {} for a world of {}", spec.rank, spec.world_size),
                  "rank", "ranks count from 0 to world - 1");
  if (spec.batch_size < 1)
    fail_argument(fmt::format("the data loader's batch_size is {}", spec.batch_size), "batch_size",
                  "give a batch_size of at least 1");
  if (spec.split_batches) {
    if (spec.batch_size % spec.world_size != 0)
      fail_argument(
          fmt::format("the data loader's batch_size {} cannot be split over {} processes: "
                      "{} % {} = {}",
                      spec.batch_size, spec.world_size, spec.batch_size, spec.world_size,
                      spec.batch_size % spec.world_size),
          "batch_size",
          "with split_batches, batch_size is the global one and must be a multiple of the "
          "number of processes");
    return static_cast<size_t>(spec.batch_size);
  }
  if (spec.batch_size > std::numeric_limits<int64_t>::max() / spec.world_size)
    fail_argument(fmt::format("the data loader's batch_size {} times {} processes exceeds 2^63 - 1",
                              spec.batch_size, spec.world_size),
                  "batch_size", "give a smaller batch_size");
  return static_cast<size_t>(spec.batch_size) * static_cast<size_t>(spec.world_size);
}

}  // namespace

BatchSampler::BatchSampler(const BatchSamplerOptions& spec)
    : samples_(spec.samples),
      start_(spec.start),
      global_(global_batch(spec)),
      slice_(global_ / static_cast<size_t>(spec.world_size)),
      first_(slice_ * static_cast<size_t>(spec.rank)),
      size_(0),
      wrap_(!spec.drop_last && spec.even_batches) {
  if (start_ > samples_)
    fail_argument(fmt::format("an epoch of {} samples cannot begin at sample {}", samples_, start_),
                  "start",
                  "skip fewer batches, or resume over the dataset the cursor was saved with");
  size_ = (samples_ - start_) / global_;
  const size_t rest = (samples_ - start_) % global_;
  if (!spec.drop_last && rest > (spec.even_batches ? 0 : first_)) ++size_;
}

void BatchSampler::batch(size_t step, std::vector<size_t>& positions) const {
  const size_t begin = start_ + step * global_ + first_;
  const size_t end = wrap_ ? begin + slice_ : std::min(begin + slice_, samples_);
  positions.clear();
  for (size_t i = begin; i < end; ++i) positions.push_back(i < samples_ ? i : i % samples_);
}

size_t BatchSampler::own(size_t step) const {
  const size_t begin = start_ + step * global_ + first_;
  return begin < samples_ ? std::min(slice_, samples_ - begin) : 0;
}

namespace {

__extension__ using uint128 = unsigned __int128;

constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class Draws {
 public:
  Draws(uint64_t seed, uint64_t epoch) : state_(mix(mix(seed) + epoch + 1)) {}

  // Uniform in [0, bound), without the bias of a remainder (Lemire 2019).
  uint64_t below(uint64_t bound) {
    uint128 product = static_cast<uint128>(draw()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold)
        product = static_cast<uint128>(draw()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t draw() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix(state_);
  }

  uint64_t state_;
};

}  // namespace

void shuffled_order(size_t count, uint64_t seed, uint64_t epoch, std::vector<size_t>& order) {
  order.resize(count);
  std::iota(order.begin(), order.end(), size_t{0});
  Draws draws(seed, epoch);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
}

}  // namespace coupler::data
