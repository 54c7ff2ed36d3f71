// Stable Diffusion 1's shapes with random weights, 4.3 GB in the compute dtype, within 800 MB: the
// same picture, byte for byte, as without a limit.
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
      "--height 128 --width 128 --seed 7 --device cpu ";
  const Outcome bounded = paint(here, picture + "--output bounded.png --max-memory 800MB");
  ASSERT_EQ(bounded.exit_code, 0) << bounded.err;
  const Outcome free = paint(here, picture + "--output free.png");
  ASSERT_EQ(free.exit_code, 0) << free.err;
  EXPECT_GT(peak_mib(bounded), 0);
  EXPECT_LE(peak_mib(bounded), kBudgetMiB);
  EXPECT_GT(peak_mib(free), 4000) << "the unbounded run has all weights";
  const std::string png = file_text(here.path() / "bounded.png");
  EXPECT_GT(png.size(), 1000U);
  EXPECT_EQ(png, file_text(here.path() / "free.png"));
  RecordProperty("peak_mib", std::to_string(peak_mib(bounded)));
}

}  // namespace
}  // namespace coupler
