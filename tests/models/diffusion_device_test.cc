// The models of a Stable Diffusion take turns on an accelerator, here a test double.
#include <coupler/state_dict.h>
#include <coupler/text_to_image.h>

#include "fixture.h"
#include "test_device.h"

namespace coupler::diffusion {
namespace {

using coupler::testing::device_bytes;
using coupler::testing::most_device_bytes;
using coupler::testing::reset_device_bytes;
using coupler::testing::test_device;

// Attention and sums in another order change a byte by at most one.
TEST(TextToImageOnADevice, ModelsTakeTurns_AndPaintTheSamePicture) {
  const at::Tensor expected =
      SafeTensors::open(fixture("diffusion/reference.safetensors")).tensor("picture.plain");
  for (const bool bounded : {false, true}) {
    TextToImageOptions options{.device = test_device(0)};
    if (bounded) options.max_memory = uint64_t{8} << 30;
    auto paint = TextToImage::open(fixture("diffusion"), options);
    EXPECT_EQ(device_bytes(0), 0U);
    for (int round = 0; round < 2; ++round) {
      reset_device_bytes();
      const at::Tensor picture =
          paint("A Lighthouse, at DAWN!",
                {.steps = 4, .height = 48, .width = 32, .guidance_scale = 1, .seed = 7});
      EXPECT_TRUE(picture.device().is_cpu());
      EXPECT_LE(picture.to(at::kInt).sub(expected.to(at::kInt)).abs().max().item<int>(), 1);
      EXPECT_GT(most_device_bytes(0), 0U);
      EXPECT_EQ(device_bytes(0), 0U) << "all models have left the device";
    }
  }
}

}  // namespace
}  // namespace coupler::diffusion
