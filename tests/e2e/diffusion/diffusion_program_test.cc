// The diffusion example with a small model: the same PNG with and without a memory limit, and the
// errors of wrong input.
#include <cstdint>
#include <string>
#include <vector>

#include "painted.h"

namespace coupler {
namespace {

const std::string kModel =
    "--model '" DIFFUSION_FIXTURE "' --prompt 'A Lighthouse, at DAWN!' --width 32 --device cpu ";
const std::string kSmall = kModel + "--steps 4 --height 48 ";

uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8U | static_cast<uint8_t>(bytes.at(at + i));
  return value;
}

TEST(DiffusionProgram, SmallModel_WritesTheSamePngUnderABudget) {
  const Workplace here;
  const Outcome free = paint(here, kSmall + "--seed 7 --output free.png");
  ASSERT_EQ(free.exit_code, 0) << free.err;
  EXPECT_NE(free.out.find("free.png: 32 x 48, 4 steps in "), std::string::npos) << free.out;
  EXPECT_GT(peak_mib(free), 0);
  EXPECT_NE(free.err.find("denoising"), std::string::npos) << free.err;
  const std::string png = file_text(here.path() / "free.png");
  ASSERT_GT(png.size(), 100U);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(big_endian(png, 16), 32U);
  EXPECT_EQ(big_endian(png, 20), 48U);

  const Outcome bounded = paint(here, kSmall + "--seed 7 --output bounded.png --max-memory 800MB");
  ASSERT_EQ(bounded.exit_code, 0) << bounded.err;
  EXPECT_EQ(file_text(here.path() / "bounded.png"), png);
  EXPECT_LE(peak_mib(bounded), 762);
  EXPECT_FALSE(std::filesystem::exists(here.path() / "bounded.png.partial"));

  const Outcome other = paint(here, kSmall + "--output other.png --seed 8");
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(file_text(here.path() / "other.png"), png);
}

TEST(DiffusionProgram, WrongInput_EndsWithItsMessage) {
  const Workplace here;
  here.write("picture.png", "before");
  std::filesystem::create_directory(here.path() / "folder.png");
  const struct {
    std::string arguments, message;
  } cases[] = {
      {kSmall + "--output nowhere/picture.png", "nowhere/picture.png cannot be written: No such"},
      {kSmall + "--output folder.png", "folder.png cannot be written: it is a folder"},
      {kModel + "--height 48 --steps 0", "0 steps requested"},
      {kModel + "--steps 4 --height 50",
       "height 50 is not a multiple of 4\n  hint: use 52, the next multiple"},
      {kSmall + "--max-memory some", "some"},
      {kSmall + "--max-memory 30MB", "max_memory"},
      {"--model ./nowhere --prompt a", "nowhere/"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = paint(here, wrong.arguments);
    EXPECT_NE(outcome.exit_code, 0) << wrong.message;
    EXPECT_NE(outcome.err.find(wrong.message), std::string::npos)
        << wrong.message << "\n  in: " << outcome.err;
  }
  // The old file stays, and nothing unfinished is left.
  EXPECT_EQ(file_text(here.path() / "picture.png"), "before");
  EXPECT_FALSE(std::filesystem::exists(here.path() / "picture.png.partial"));
}

}  // namespace
}  // namespace coupler
