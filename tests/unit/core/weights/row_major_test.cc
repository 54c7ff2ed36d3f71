#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

std::string read(const std::string& memory, uint64_t first, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& strides, uint64_t bytes) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<uint8_t> exact(memory.begin(), memory.end());
  std::string result;
  read_row_major(exact.data() + first * bytes, shape, strides, bytes,
                 [&](const char* chunk, size_t size) {
                   EXPECT_LE(size, kWeightChunk);
                   result.append(chunk, size);
                 });
  return result;
}

// One element after another, by its index.
std::string naive(const std::string& memory, uint64_t first, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& strides, uint64_t bytes) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::string result;
  for (int64_t n = 0; n < count; ++n) {
    uint64_t offset = first;
    int64_t rest = n;
    for (size_t i = shape.size(); i > 0; --i) {
      offset += static_cast<uint64_t>(rest % shape[i - 1] * strides[i - 1]);
      rest /= shape[i - 1];
    }
    result += memory.substr(offset * bytes, bytes);
  }
  return result;
}

TEST(RowMajor_RandomStrides, AreReadAsElementByElement) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    constexpr uint64_t kBytes[] = {1, 2, 4, 8, 16};
    const uint64_t bytes = kBytes[pick(0, 4)];
    std::vector<int64_t> shape, strides;
    for (int64_t rank = pick(0, 5); rank > 0; --rank) {
      shape.push_back(pick(round % 10 == 0 ? 0 : 1, 5));
      strides.push_back(pick(0, 9));
    }
    if (round % 3 == 0) {  // a permutation of a contiguous tensor, the most common kind
      std::vector<size_t> order(shape.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      int64_t stride = 1;
      for (const size_t i : order) {
        strides[i] = stride;
        stride *= std::max<int64_t>(shape[i], 1);
      }
    }
    const auto first = static_cast<uint64_t>(pick(0, 3));
    uint64_t last = first;
    for (size_t i = 0; i < shape.size(); ++i)
      last += static_cast<uint64_t>(std::max<int64_t>(shape[i] - 1, 0) * strides[i]);
    std::string memory((last + 1) * bytes, '\0');
    for (char& c : memory) c = static_cast<char>(random());
    EXPECT_EQ(read(memory, first, shape, strides, bytes),
              naive(memory, first, shape, strides, bytes));
  }
}

TEST(RowMajor_LargerThanAChunk, ComesInChunks) {
  std::mt19937 random(8);
  constexpr int64_t kRows = 1500, kColumns = 1001;
  std::string memory(kRows * kColumns * 4, '\0');
  for (char& c : memory) c = static_cast<char>(random());
  EXPECT_EQ(read(memory, 0, {kRows, kColumns}, {kColumns, 1}, 4), memory);
  EXPECT_EQ(read(memory, 0, {kColumns, kRows}, {1, kColumns}, 4),
            naive(memory, 0, {kColumns, kRows}, {1, kColumns}, 4));
  EXPECT_EQ(read(memory, 5, {2, 700'000}, {700'000, 2}, 2),
            naive(memory, 5, {2, 700'000}, {700'000, 2}, 2));
}

}  // namespace
}  // namespace coupler::weights
