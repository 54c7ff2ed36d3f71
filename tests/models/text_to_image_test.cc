// A whole small Stable Diffusion against diffusers' pipeline, and the errors for wrong input.
#include <coupler/state_dict.h>
#include <coupler/text_to_image.h>

#include <filesystem>
#include <string>

#include "base/process.h"
#include "fixture.h"

namespace coupler::diffusion {
namespace {

constexpr const char* kPrompt = "A Lighthouse, at DAWN!";

ImageOptions small() { return {.steps = 4, .height = 48, .width = 32, .seed = 7}; }

TextToImageOptions bounded(uint64_t more = uint64_t{256} << 20) {
  return {.device = c10::kCPU, .max_memory = resident_bytes() + more};
}

at::Tensor picture_reference(const std::string& name) {
  return SafeTensors::open(fixture("diffusion/reference.safetensors")).tensor(name);
}

TEST(TextToImage, SmallModel_PaintsDiffusersPicture) {
  auto paint = TextToImage::open(fixture("diffusion"), {.device = c10::kCPU});
  ImageOptions options = small();
  options.guidance_scale = 3;
  options.negative_prompt = "license";
  int64_t told = -1;
  options.on_step = [&](int64_t done, int64_t steps) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(steps, 4);
  };
  const at::Tensor guided = paint(kPrompt, options);
  EXPECT_EQ(told, 4);
  // Values at the border between two bytes may round to either side.
  const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
    return a.to(at::kInt).sub(b.to(at::kInt)).abs().max().item<int>();
  };
  EXPECT_LE(apart(guided, picture_reference("picture.guided")), 1);
  options = small();
  options.guidance_scale = 1;
  EXPECT_LE(apart(paint(kPrompt, options), picture_reference("picture.plain")), 1);
}

TEST(TextToImage, Bound_ChangesNothing) {
  auto paint = TextToImage::open(fixture("diffusion"), {.device = c10::kCPU});
  auto small_one = TextToImage::open(fixture("diffusion"), bounded());
  const at::Tensor first = paint(kPrompt, small());
  EXPECT_TRUE(first.equal(small_one(kPrompt, small())));
  // Each model runs again, since it is used several times.
  EXPECT_TRUE(first.equal(small_one(kPrompt, small())));
  EXPECT_TRUE(first.equal(paint(kPrompt, small())));
}

// As in Stable Diffusion 2, which pads prompts with "!".
TEST(TextToImage, PadTokenOfTheFolder_IsHeeded) {
  const auto painted = [](const char* map) {
    const TestFolder folder;
    folder.copy("diffusion");
    folder.write("tokenizer/special_tokens_map.json", map);
    return TextToImage::open(folder.path(), {.device = c10::kCPU})(kPrompt, small());
  };
  const at::Tensor usual = painted("{}");
  EXPECT_TRUE(usual.equal(painted(R"({"pad_token": {"content": "<|endoftext|>"}})")));
  EXPECT_FALSE(usual.equal(painted(R"({"pad_token": "!"})")));
}

TEST(TextToImage, BoundThatIsTooLow_IsRefusedBeforeAnyModelRuns) {
  auto none = TextToImage::open(fixture("diffusion"),
                                {.device = c10::kCPU, .max_memory = uint64_t{1} << 20});
  ImageOptions options = small();
  options.on_step = [](int64_t, int64_t) { FAIL(); };
  expect_message([&] { none(kPrompt, options); },
                 {"max_memory is 1.0 MiB, but the activations of this image alone take"});
  auto little = TextToImage::open(fixture("diffusion"),
                                  {.device = c10::kCPU, .max_memory = uint64_t{40} << 20});
  expect_message([&] { little(kPrompt, options); },
                 {"max_memory is 40.0 MiB, of which up to",
                  "is reserved for this image's activations", "are needed"});
}

TEST(TextToImage, WrongPicture_IsRefusedWithWhatToDo) {
  auto paint = TextToImage::open(fixture("diffusion"), {.device = c10::kCPU});
  const auto with = [&](auto change, const std::string& prompt = "a") {
    ImageOptions options = small();
    change(options);
    return message_of([&] { paint(prompt, options); });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n  in: " << message;
  };
  expect(with([](ImageOptions& o) { o.steps = 0; }), "0 steps requested");
  expect(with([](ImageOptions& o) { o.height = 50; }), "height 50 is not a multiple of 4");
  expect(with([](ImageOptions& o) { o.height = 50; }), "use 52, the next multiple");
  expect(with([](ImageOptions& o) { o.width = 0; }), "width 0 is not a multiple of 4");
  std::string words;
  for (int i = 0; i < 80; ++i) words += "the ";
  expect(with([](ImageOptions&) {}, words + "last"), "the prompt has ");
  expect(with([](ImageOptions&) {}, words + "last"), "the last' would be lost");
  expect(with([](ImageOptions&) {}, words + "last"), "shorten it");
  expect(with([&](ImageOptions& o) { o.negative_prompt = words; }), "the negative prompt has");
}

TEST(TextToImage, WrongFolder_IsRefusedWithWhatToDo) {
  const auto changed = [](auto change, std::vector<std::string> parts) {
    const TestFolder folder;
    folder.copy("diffusion");
    change(folder);
    for (const bool bound : {false, true})
      expect_message(
          [&] {
            (void)TextToImage::open(folder.path(),
                                    bound ? bounded() : TextToImageOptions{.device = c10::kCPU});
          },
          parts);
  };
  const auto remove = [](const char* name) {
    return [=](const TestFolder& folder) { std::filesystem::remove(folder.path() + "/" + name); };
  };
  changed(remove("unet/config.json"), {"unet/config.json cannot be read"});
  changed(remove("scheduler/scheduler_config.json"), {"scheduler_config.json cannot be read"});
  changed(remove("vae/diffusion_pytorch_model.safetensors"), {"vae has no weights"});
  changed(remove("tokenizer/merges.txt"), {"tokenizer"});
  changed([](const TestFolder& folder) { folder.set("unet/config.json", "/layers_per_block", 2); },
          {"down_blocks.0.resnets.1"});
  changed(
      [](const TestFolder& folder) { folder.set("text_encoder/config.json", "/vocab_size", 700); },
      {"is out of range; the text encoder has 700 tokens"});
  changed(
      [](const TestFolder& folder) {
        folder.write("tokenizer/special_tokens_map.json", R"({"pad_token": "nothing"})");
      },
      {"the pad token 'nothing' is not in the vocabulary"});
  changed([](const TestFolder& folder) { folder.set("vae/config.json", "/latent_channels", 8); },
          {"channels of the UNet and of the VAE do not match: 4 and 8"});
  changed(
      [](const TestFolder& folder) {
        folder.set("unet/config.json", "/_class_name", "SD3Transformer2DModel");
      },
      {"'SD3Transformer2DModel' is not supported; supported:"});
}

}  // namespace
}  // namespace coupler::diffusion
