// TextToImage: a picture of a text by Stable Diffusion 1 or 2 out of a folder as diffusers writes
// it: tokenizer/, text_encoder/, unet/, vae/ and scheduler/. The models take turns, on any device;
// with a bound on memory each is used layer by layer out of its files.
//
//   auto paint = coupler::diffusion::TextToImage::open("sd-v1", {.max_memory = "800MB"});
//   at::Tensor picture = paint("a lighthouse at dawn", {.steps = 20, .seed = 7});
//
// The same picture comes out with a bound and without one. Used by one thread. Errors are
// coupler::Error and say what to do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <coupler/max_memory.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace coupler::diffusion {

// For TextToImage::open.
struct TextToImageOptions {
  // Where the models run. Unset: the first accelerator, or the CPU where there is none.
  std::optional<c10::Device> device;
  // What this process may have resident in host memory, all included. Weights come from their files
  // for each use then, and leave memory after it where they do not fit beside activations. Unset:
  // no bound; each model is in host memory, and on the device during its turn
  // (cpu_offload_with_hook).
  std::optional<ByteCount> max_memory;
  // What is computed with, whatever the files hold.
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// For one picture.
struct PictureOptions {
  std::string negative_prompt;  // what the picture shall not show
  // Steps of denoising, at least 1; more take longer and show more.
  int64_t steps = 50;
  int64_t height = 512, width = 512;  // multiples of 8
  double guidance_scale = 7.5;        // how much the text counts; 1 and less: plainly
  uint64_t seed = 0;                  // of the noise that it begins with, as torch.manual_seed
  // Called before the first step and after each: how many are done, and of how many.
  std::function<void(int64_t done, int64_t steps)> on_step;
};

class TextToImage {
 public:
  // Reads the configurations and checks, or loads, the weights. Throws Error(kIo) for a file that
  // is missing, Error(kUnsupported) for an architecture that is not there, and as
  // load_checkpoint_and_dispatch does, naming tensors that are missing.
  static TextToImage open(const std::string& folder, const TextToImageOptions& options = {});
  ~TextToImage();
  TextToImage(TextToImage&&) noexcept;
  TextToImage& operator=(TextToImage&&) noexcept;

  // [height, width, 3] of uint8, red, green and blue, in host memory. Throws
  // Error(kInvalidArgument) for options that make no sense, a prompt of more tokens than the text
  // encoder takes, and a bound that is too low for such a picture, before any model runs.
  at::Tensor operator()(const std::string& prompt, const PictureOptions& options = {});

 private:
  struct State;
  explicit TextToImage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A folder with the shapes of Stable Diffusion 1 and weights drawn from a seed, for tests and
// measurements where the real ones are not at hand: its pictures are noise. 2.1 GB in half, 4.3 GB
// in float. The tokenizer knows single bytes only. Throws Error(kIo).
struct RandomModelOptions {
  uint64_t seed = 0;                              // of the values
  c10::ScalarType dtype = c10::ScalarType::Half;  // of the files
};
// Makes the folder.
void write_random_stable_diffusion(const std::string& folder,
                                   const RandomModelOptions& options = {});

}  // namespace coupler::diffusion
