#include <bit>

#include "schedules.h"

namespace coupler::bench::simulated {
namespace {

// Consecutive members, a power of two.
struct BinaryBlock {
  int begin = 0;
  int size = 0;
};

// The largest first.
std::vector<BinaryBlock> binary_blocks(int members) {
  std::vector<BinaryBlock> blocks;
  for (int begin = 0; begin < members;) {
    const auto size = static_cast<int>(std::bit_floor(static_cast<unsigned>(members - begin)));
    blocks.push_back({begin, size});
    begin += size;
  }
  return blocks;
}

Block half_of(const Block& whole, bool upper) {
  const uint64_t lower = whole.count - whole.count / 2;
  return upper ? Block{whole.begin + lower, whole.count - lower} : Block{whole.begin, lower};
}

// What member `index` of a binary block has when all of it is halved.
Block piece_of(int index, int size, Block whole) {
  for (int bit = 1; bit < size; bit <<= 1) whole = half_of(whole, (index & bit) != 0);
  return whole;
}

}  // namespace

void HalvingDoubling::all_reduce(const Block& block) {
  const auto blocks = binary_blocks(group_.size());
  size_t own = 0;
  while (group_.index >= blocks[own].begin + blocks[own].size) ++own;
  const auto [begin, size] = blocks[own];
  const int index = group_.index - begin;

  std::vector<Block> halved{block};
  for (int bit = 1; bit < size; bit <<= 1) {
    const bool upper = (index & bit) != 0;
    const Block now = halved.back();
    const int peer = group_.rank(begin + (index ^ bit));
    halved.push_back(half_of(now, upper));
    rank_.round({{peer, {half_of(now, !upper)}}}, {{peer, {halved.back()}, true}});
  }
  // A piece of a smaller block is divided further in the next larger one.
  const Block piece = halved.back();
  if (own + 1 < blocks.size()) {
    const BinaryBlock& smaller = blocks[own + 1];
    rank_.round({}, {{group_.rank(smaller.begin + index % smaller.size), {piece}, true}});
  }
  if (own > 0) {
    const BinaryBlock& larger = blocks[own - 1];
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int other = index; other < larger.size; other += size) {
      const Block its = piece_of(other, larger.size, block);
      sends.push_back({group_.rank(larger.begin + other), {its}});
      receives.push_back({group_.rank(larger.begin + other), {its}, false});
    }
    rank_.round(sends, {});
    rank_.round({}, receives);
  }
  if (own + 1 < blocks.size()) {
    const BinaryBlock& smaller = blocks[own + 1];
    rank_.round({{group_.rank(smaller.begin + index % smaller.size), {piece}}}, {});
  }
  for (int bit = size >> 1; bit > 0; bit >>= 1) {
    const Block mine = halved.back();
    halved.pop_back();
    const int peer = group_.rank(begin + (index ^ bit));
    rank_.round({{peer, {mine}}}, {{peer, {half_of(halved.back(), (index & bit) == 0)}, false}});
  }
}

void HalvingDoubling::reduce_scatter(const std::vector<Part>& parts) {
  if (!std::has_single_bit(static_cast<unsigned>(group_.size())))
    return Ring(rank_, group_).reduce_scatter(parts);
  for (int bit = group_.size() >> 1; bit > 0; bit >>= 1) {
    const int peer = group_.index ^ bit;
    Part mine, others;
    for (int i = 0; i < bit; ++i) {
      append(&mine, parts[static_cast<size_t>((group_.index & ~(bit - 1)) + i)]);
      append(&others, parts[static_cast<size_t>((peer & ~(bit - 1)) + i)]);
    }
    rank_.round({{group_.rank(peer), others}}, {{group_.rank(peer), mine, true}});
  }
}

void HalvingDoubling::all_gather(const std::vector<Part>& parts) {
  if (!std::has_single_bit(static_cast<unsigned>(group_.size())))
    return Ring(rank_, group_).all_gather(parts);
  for (int bit = 1; bit < group_.size(); bit <<= 1) {
    const int peer = group_.index ^ bit;
    Part mine, others;
    for (int i = 0; i < bit; ++i) {
      append(&mine, parts[static_cast<size_t>((group_.index & ~(bit - 1)) + i)]);
      append(&others, parts[static_cast<size_t>((peer & ~(bit - 1)) + i)]);
    }
    rank_.round({{group_.rank(peer), mine}}, {{group_.rank(peer), others, false}});
  }
}

}  // namespace coupler::bench::simulated
