// Tensors of the test double's devices, copied to host memory and back.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "activations/activation_offload.h"
#include "test_device.h"

namespace coupler::activations {
namespace {

using coupler::testing::device_bytes;
using coupler::testing::on_device;
using coupler::testing::streams_during;
using coupler::testing::test_device;

constexpr int64_t kTensorRows = 6, kTensorWidth = 8;
constexpr size_t kTensorBytes = kTensorRows * kTensorWidth * sizeof(float);

at::Tensor numbers() {
  return at::arange(kTensorRows * kTensorWidth, at::kFloat).view({kTensorRows, kTensorWidth}) + 1;
}

TEST(OffloadedTensors, Tensor_LeavesTheDeviceAndComesBack) {
  const size_t before = device_bytes(0);
  const auto offloaded = OffloadedTensors::make();
  offloaded->add(on_device(numbers()));
  EXPECT_EQ(device_bytes(0), before);
  for (int time = 0; time < 2; ++time) {
    const at::Tensor back = offloaded->bring_back().at(0);
    EXPECT_EQ(back.device(), test_device(0));
    EXPECT_EQ(device_bytes(0), before + kTensorBytes);
    EXPECT_TRUE(back.cpu().equal(numbers()));
  }
  EXPECT_EQ(device_bytes(0), before);
}

TEST(OffloadedTensors, OtherDevice_IsTheOneItComesBackTo) {
  const auto offloaded = OffloadedTensors::make();
  offloaded->add(numbers().to(test_device(1)));
  EXPECT_EQ(offloaded->bring_back().at(0).device(), test_device(1));
}

TEST(OffloadedTensors, Views_KeepTheirStridesAndCommonMemory) {
  const auto offloaded = OffloadedTensors::make();
  {
    const at::Tensor whole = on_device(numbers());
    const std::vector<at::Tensor> halves = whole.chunk(2, 1);
    offloaded->add(halves[0]);
    offloaded->add(halves[1]);
    offloaded->add(whole.t());
  }
  const size_t before = device_bytes(0);
  const std::vector<at::Tensor> back = offloaded->bring_back();
  EXPECT_EQ(device_bytes(0), before + kTensorBytes);
  const std::vector<at::Tensor> expected = numbers().chunk(2, 1);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back[i].strides(), expected[i].strides());
    EXPECT_TRUE(back[i].cpu().equal(expected[i]));
    EXPECT_TRUE(back[i].is_alias_of(back[2]));
  }
  EXPECT_TRUE(back[2].cpu().equal(numbers().t()));
}

TEST(OffloadedTensors, ExpandedTensor_StaysExpanded) {
  const auto offloaded = OffloadedTensors::make();
  offloaded->add(on_device(at::arange(4, at::kFloat)).expand({1000, 4}));
  const size_t before = device_bytes(0);
  const at::Tensor back = offloaded->bring_back().at(0);
  EXPECT_EQ(device_bytes(0), before + 4 * sizeof(float));
  EXPECT_EQ(back.strides(), at::IntArrayRef({0, 1}));
  EXPECT_TRUE(back.cpu().equal(at::arange(4, at::kFloat).expand({1000, 4})));
}

TEST(OffloadedTensors, SmallPartOfAStorage_IsAllThatIsCopied) {
  const auto offloaded = OffloadedTensors::make();
  offloaded->add(on_device(numbers()).narrow(0, 3, 1).narrow(1, 2, 3));
  const size_t before = device_bytes(0);
  const at::Tensor back = offloaded->bring_back().at(0);
  EXPECT_EQ(device_bytes(0), before + 3 * sizeof(float));
  EXPECT_TRUE(back.cpu().equal(numbers().narrow(0, 3, 1).narrow(1, 2, 3)));
}

TEST(OffloadedTensors, OtherTypes_ComeBackAsTheyWere) {
  const at::Tensor halves = numbers().to(at::kBFloat16), whole = numbers().to(at::kLong);
  const auto offloaded = OffloadedTensors::make();
  offloaded->add(on_device(halves));
  offloaded->add(on_device(whole));
  const std::vector<at::Tensor> back = offloaded->bring_back();
  EXPECT_TRUE(back[0].cpu().equal(halves));
  EXPECT_TRUE(back[1].cpu().equal(whole));
}

TEST(OffloadedTensors, OnesMadeBefore_AreFetchedAhead) {
  const auto first = OffloadedTensors::make(), second = OffloadedTensors::make();
  first->add(on_device(numbers()));
  second->add(on_device(numbers()));
  const size_t before = device_bytes(0);
  {
    const auto back = second->bring_back();
    EXPECT_EQ(device_bytes(0), before + 2 * kTensorBytes);
  }
  EXPECT_EQ(device_bytes(0), before + kTensorBytes);
  EXPECT_TRUE(first->bring_back().at(0).cpu().equal(numbers()));
  EXPECT_EQ(device_bytes(0), before);
}

// Computation and copies wait for each other only when one needs the other's values.
TEST(OffloadedTensors, Copies_HaveAStreamOfTheirOwn) {
  using Log = std::vector<std::string>;
  const at::Tensor tensor = on_device(numbers());
  HostCopy::of(tensor);  // the first copy creates the stream
  const auto offloaded = OffloadedTensors::make();
  EXPECT_EQ(streams_during([&] { offloaded->add(tensor); }),
            Log({"1 waits for 0", "1 copies", "1 holds memory"}));
  EXPECT_EQ(streams_during([&] { offloaded->add(tensor); }), Log());
  EXPECT_EQ(
      streams_during([&] { offloaded->bring_back(); }),
      Log({"1 copies", "0 waits for 1", "0 holds memory", "0 waits for 1", "0 holds memory"}));
  EXPECT_EQ(streams_during([&] { tensor.cpu(); }), Log({"0 copies"}));
}

TEST(OffloadedTensors, OnesThatAreForgotten_AreNotFetched) {
  const auto first = OffloadedTensors::make(), second = OffloadedTensors::make();
  first->add(on_device(numbers()));
  second->add(on_device(numbers()));
  first->forget();
  const size_t before = device_bytes(0);
  const auto back = second->bring_back();
  EXPECT_EQ(device_bytes(0), before + kTensorBytes);
}

TEST(HostCopy, SameVersionOfATensor_IsCopiedOnce) {
  const at::Tensor tensor = on_device(numbers());
  const auto copy = HostCopy::of(tensor);
  EXPECT_EQ(HostCopy::of(tensor), copy);
  EXPECT_EQ(HostCopy::of(tensor.t()), copy);
  tensor.add_(1);
  const auto other = HostCopy::of(tensor);
  EXPECT_NE(other, copy);
  EXPECT_EQ(HostCopy::of(tensor), other);
}

TEST(HostCopy, MemoryOfALaterTensor_IsAnother) {
  const auto copy = HostCopy::of(on_device(numbers()));
  EXPECT_NE(HostCopy::of(on_device(numbers())), copy);
}

TEST(VersionMark, ChangeInPlaceThroughAView_IsSeen) {
  at::Tensor tensor = numbers();
  const VersionMark mark(tensor), of_detached(tensor.detach());
  EXPECT_FALSE(mark.changed());
  tensor.select(0, 1).zero_();
  tensor.reset();
  EXPECT_TRUE(mark.changed());
  EXPECT_TRUE(of_detached.changed());
  EXPECT_FALSE(VersionMark().changed());
}

}  // namespace
}  // namespace coupler::activations
