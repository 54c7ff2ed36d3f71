// Device state offloaded to host memory or a disk.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <test_device.h>

#include <random>

#include "residency/intercept.h"
#include "residency/offloaded_memory.h"
#include "working_folder.h"

namespace coupler::residency {
namespace {

constexpr int64_t kNumel = 3000;  // not a whole number of pages
constexpr int kTensors = 5;

// The same operations on tensors that stay on the device.
void expect_computes_as_memory_does(const OffloadPlace& place) {
  const c10::Device device = testing::test_device(0);
  OffloadedMemory memory(place, device);
  std::vector<at::Tensor> offloaded, plain;
  for (int i = 0; i < kTensors; ++i) {
    offloaded.push_back(memory.make("tensor " + std::to_string(i), kNumel, at::kFloat));
    plain.push_back(at::zeros({kNumel}, at::TensorOptions(at::kFloat).device(device)));
    EXPECT_EQ(offloaded.back().device(), device);
  }
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    const size_t to = random() % kTensors, from = random() % kTensors;
    for (std::vector<at::Tensor>* side : {&offloaded, &plain}) {
      (*side)[to].add_((*side)[from], 0.5).add_(round);
    }
    ASSERT_TRUE(at::equal(offloaded[from].cpu(), plain[from].cpu())) << "round " << round;
  }
  for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(at::equal(offloaded[i].cpu(), plain[i].cpu()));
}

TEST(OffloadedMemory, OfADevice_InHostMemory_ComputesAsMemoryDoes) {
  for (const bool pinned : {true, false}) expect_computes_as_memory_does({.pinned = pinned});
}

TEST(OffloadedMemory, OfADevice_OnADisk_ComputesAsMemoryDoes) {
  for (const int buffers : {0, 2}) {
    const WorkingFolder folder;
    expect_computes_as_memory_does({.folder = folder.path(), .buffers = buffers});
  }
}

TEST(OffloadedMemory, OfADevice_TakesLittleOfIt) {
  const c10::Device device = testing::test_device(1);
  const size_t before = testing::device_bytes(1);
  {
    OffloadedMemory memory({}, device);
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(memory.make(std::to_string(i), kNumel, at::kFloat));
    }
    testing::reset_device_bytes();
    for (int round = 0; round < 3; ++round) {
      for (at::Tensor& tensor : tensors) tensor.add_(1);
    }
    // The one in use, the next, and one being written back.
    EXPECT_LE(testing::most_device_bytes(1) - before, 4 * kNumel * sizeof(float));
  }
  EXPECT_EQ(testing::device_bytes(1), before);
}

}  // namespace
}  // namespace coupler::residency
