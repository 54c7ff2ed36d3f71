#include "residency/offloaded_memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "residency/intercept.h"
#include "residency/unit.h"
#include "strategy/flat_parameters.h"
#include "working_folder.h"

namespace coupler::residency {
namespace {

constexpr int64_t kNumel = 3000;  // not a whole number of pages

TEST(OffloadedMemory, IsZerosAtFirst) {
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 1}, c10::kCPU);
  EXPECT_TRUE(at::equal(memory.make("a", kNumel, at::kFloat), at::zeros({kNumel})));
  EXPECT_EQ(memory.make("nothing", 0, at::kFloat).numel(), 0);
}

// The same operations on tensors in memory.
TEST(OffloadedMemory, ComputesAsMemoryDoes) {
  constexpr int kTensors = 6;
  for (const int buffers : {0, 1, 4}) {
    const WorkingFolder folder;
    OffloadedMemory memory({.folder = folder.path(), .buffers = buffers}, c10::kCPU);
    std::vector<at::Tensor> offloaded, plain;
    for (int i = 0; i < kTensors; ++i) {
      offloaded.push_back(memory.make("tensor " + std::to_string(i), kNumel, at::kFloat));
      plain.push_back(at::zeros({kNumel}));
    }
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
      const size_t a = random() % kTensors, b = random() % kTensors;
      const auto begin = static_cast<int64_t>(random() % 100);
      const auto act = [&](std::vector<at::Tensor>& tensors) {
        const at::Tensor part = strategy::place_in(tensors[a], begin, {10, 7});
        switch (random() % 4) {
          case 0:
            tensors[a].add_(tensors[b], 0.5).add_(1);
            break;
          case 1:
            part.copy_(at::full({10, 7}, round));
            break;
          case 2:
            tensors[a].narrow(0, begin, 50).mul_(0.25);
            break;
          default:
            std::vector<at::Tensor> list{tensors[a], part};
            at::_foreach_mul_(list, 0.5);
        }
      };
      std::mt19937 same = random;
      act(offloaded);
      random = same;
      act(plain);
      ASSERT_TRUE(at::equal(offloaded[a], plain[a])) << "round " << round;
    }
    for (size_t i = 0; i < kTensors; ++i) EXPECT_TRUE(at::equal(offloaded[i], plain[i]));
  }
}

TEST(OffloadedMemory, KeepsLittleInMemory) {
  constexpr int kTensors = 40;
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 2}, c10::kCPU);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) tensors.push_back(memory.make("t", kNumel, at::kFloat));
  for (int pass = 0; pass < 3; ++pass) {
    for (const at::Tensor& tensor : tensors) tensor.add_(1);
  }
  const size_t block = memory.bytes() / kTensors;
  // In use, read ahead (2), waiting to be written (2), and one in transit in each direction.
  EXPECT_LE(memory.peak_bytes(), 7 * block);
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(at::equal(tensor, at::full({kNumel}, 3.0F)));
}

TEST(InUse, KeepsPointersValid) {
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 1}, c10::kCPU);
  const at::Tensor first = memory.make("first", kNumel, at::kFloat);
  const at::Tensor second = memory.make("second", kNumel, at::kFloat);
  {
    const InUse use(first, InUse::Access::kWrite);
    auto* const values = first.mutable_data_ptr<float>();
    second.fill_(5);  // would evict it
    for (int64_t i = 0; i < kNumel; ++i) values[i] = 7;
  }
  second.add_(1);
  EXPECT_TRUE(at::equal(first, at::full({kNumel}, 7.0F)));
  EXPECT_TRUE(at::equal(second, at::full({kNumel}, 6.0F)));
  {
    const InUse use(second, InUse::Access::kReplace);
    second.fill_(8);
  }
  {
    const InUse unheeded(first);
    first.fill_(1);
    InUse use(first);
    use.drop_writes();
  }
  second.add_(1);
  EXPECT_TRUE(at::equal(second, at::full({kNumel}, 9.0F)));
}

TEST(InUse, DropsWhatNeedNotBeKept) {
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 0}, c10::kCPU);
  const at::Tensor first = memory.make("first", kNumel, at::kFloat);
  const at::Tensor second = memory.make("second", kNumel, at::kFloat);
  first.fill_(1);
  second.fill_(1);  // the first one is evicted
  {
    InUse use(first);
    first.fill_(2);
    use.drop_writes();
  }
  second.add_(1);
  EXPECT_TRUE(at::equal(first, at::ones({kNumel})));
}

TEST(InBunches, TakesOffloadedOnesAloneAndOthersTogether) {
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 0}, c10::kCPU);
  const at::Tensor plain = at::ones({2}), offloaded = memory.make("o", 2, at::kFloat);
  std::vector<size_t> sizes;
  visit_in_groups({plain, plain, offloaded, offloaded, plain},
                  [&](at::TensorList bunch) { sizes.push_back(bunch.size()); });
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 1, 1, 1}));
  visit_in_groups({}, [](at::TensorList) { FAIL(); });
}

TEST(OffloadedMemory, IsReadByOtherThreads) {
  const WorkingFolder folder;
  OffloadedMemory memory({.folder = folder.path(), .buffers = 2}, c10::kCPU);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(memory.make("t", kNumel, at::kFloat));
    tensors.back().fill_(i);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        const int i = (round * (t + 1)) % 8;
        EXPECT_EQ(tensors[static_cast<size_t>(i)].sum().item<float>(),
                  static_cast<float>(i) * kNumel);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace coupler::residency
