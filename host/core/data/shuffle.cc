#include "data/shuffle.h"

#include <numeric>
#include <utility>

namespace coupler {
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

}  // namespace coupler
