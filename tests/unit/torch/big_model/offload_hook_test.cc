// Models that take turns on a device.
#include "small_gpt.h"
#include "test_device.h"

namespace coupler::big_model {
namespace {

using coupler::testing::device_bytes;
using coupler::testing::difference;
using coupler::testing::output_of;
using coupler::testing::real_gpt;
using coupler::testing::SmallGpt;
using coupler::testing::test_device;

TEST(OffloadHook, ModelsTakeTurns) {
  SmallGpt first = real_gpt(), second = real_gpt(), third = real_gpt();
  const at::Tensor expected = output_of(first);
  const size_t none = device_bytes(0);
  const OffloadHook hook = cpu_offload_with_hook(first, test_device(0));
  const OffloadHook next = cpu_offload_with_hook(second, test_device(0), &hook);
  const OffloadHook last = cpu_offload_with_hook(third, test_device(0), &next);
  EXPECT_EQ(device_bytes(0), none);
  EXPECT_LT(difference(output_of(first), expected), 1e-4);
  const size_t one = device_bytes(0);
  EXPECT_GT(one, none);
  EXPECT_LT(difference(output_of(first), expected), 1e-4);
  EXPECT_EQ(device_bytes(0), one);  // stays for the next call
  for (int round = 0; round < 2; ++round) {
    EXPECT_LT(difference(output_of(second), expected), 1e-4);
    EXPECT_LT(difference(output_of(third), expected), 1e-4);
    EXPECT_LE(device_bytes(0), one) << round;
    last.offload();  // the next round's first model does not move the last one away
  }
  last.offload();
  next.offload();
  hook.offload();
  EXPECT_EQ(device_bytes(0), none);
  EXPECT_LT(difference(output_of(third), expected), 1e-4);
}

}  // namespace
}  // namespace coupler::big_model
