// Stable Diffusion 1's shapes with random weights, 4.3 GB in the compute dtype, within 800 MB of
// host memory, and of the memory of an accelerator (a double): the same picture, byte for byte, as
// without a limit.
#include <cstdint>
#include <string>

#include "painted.h"

namespace coupler {
namespace {

constexpr int64_t kBudgetMiB = 762;  // 800 MB

TEST(DiffusionBudget, StableDiffusionIn800MB_PaintsTheUnboundedPicture) {
  const Workplace here;
  const std::string picture =
      "--model random --random-weights --prompt lighthouse --negative-prompt fog --steps 2 "
      "--height 128 --width 128 --seed 7 ";
  const Outcome bounded =
      paint(here, picture + "--output bounded.png --max-memory 800MB --device cpu");
  ASSERT_EQ(bounded.exit_code, 0) << bounded.err;
  const Outcome free = paint(here, picture + "--output free.png --device cpu");
  ASSERT_EQ(free.exit_code, 0) << free.err;
  EXPECT_GT(peak_mib(bounded), 0);
  EXPECT_LE(peak_mib(bounded), kBudgetMiB);
  EXPECT_GT(peak_mib(free), 4000) << "the unbounded run has all weights";
  const std::string png = file_text(here.path() / "bounded.png");
  EXPECT_GT(png.size(), 1000U);
  EXPECT_EQ(png, file_text(here.path() / "free.png"));
  RecordProperty("peak_mib", std::to_string(peak_mib(bounded)));

  const std::string on_device =
      "COUPLER_OVERRIDES=training.device=test_accelerator "
      "COUPLER_TEST_DEVICE_PEAK=peak.txt LD_PRELOAD='" TEST_DEVICE_PRELOAD "'";
  const Outcome device =
      paint(here, picture + "--output device.png --max-memory 800MB --device test_accelerator:0",
            on_device);
  ASSERT_EQ(device.exit_code, 0) << device.err;
  const int64_t device_bytes = std::stoll("0" + file_text(here.path() / "peak.txt"));
  EXPECT_GT(device_bytes, 0);
  EXPECT_LE(device_bytes, 800'000'000);
  // Sums in another order change some bytes by one: diffusion_device_test compares them.
  EXPECT_GT(file_text(here.path() / "device.png").size(), 1000U);
  RecordProperty("device_peak_bytes", std::to_string(device_bytes));
}

}  // namespace
}  // namespace coupler
