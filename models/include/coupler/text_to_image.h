// TextToImage: generates an image from a text with Stable Diffusion 1 or 2, loaded from a folder
// written by diffusers: tokenizer/, text_encoder/, unet/, vae/ and scheduler/. The models take
// turns on a device; with a memory limit, each runs layer by layer from its files.
//
//   auto paint = coupler::diffusion::TextToImage::open("sd-v1", {.max_memory = "800MB"});
//   at::Tensor picture = paint("a lighthouse at dawn", {.steps = 20, .seed = 7});
//
// The image is the same with and without a limit. Used by one thread. Errors are coupler::Error and
// say what to do.
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
  // The device on which the models run. Unset: the first accelerator, or the CPU if there is none.
  std::optional<c10::Device> device;
  // Limit of this process's resident host memory, everything included. With a limit, weights are
  // read from their files for each use and dropped afterwards if they do not fit next to the
  // activations. Unset: no limit; each model is in host memory, and on the device during its turn
  // (cpu_offload_with_hook).
  std::optional<ByteCount> max_memory;
  // The dtype of the computation, independent of the files' dtype.
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// For one image.
struct PictureOptions {
  std::string negative_prompt;  // what the image should not show
  // Denoising steps, at least 1; more take longer and add detail.
  int64_t steps = 50;
  int64_t height = 512, width = 512;  // multiples of 8
  double guidance_scale = 7.5;        // weight of the text; 1 or less: no guidance
  uint64_t seed = 0;                  // of the initial noise, as torch.manual_seed
  // Called before the first step and after each step with the number of steps done and in total.
  std::function<void(int64_t done, int64_t steps)> on_step;
};

class TextToImage {
 public:
  // Reads the configurations and checks, or loads, the weights. Throws Error(kIo) for a missing
  // file, Error(kUnsupported) for an unsupported architecture, and as load_checkpoint_and_dispatch
  // does, naming missing tensors.
  static TextToImage open(const std::string& folder, const TextToImageOptions& options = {});
  ~TextToImage();
  TextToImage(TextToImage&&) noexcept;
  TextToImage& operator=(TextToImage&&) noexcept;

  // Returns [height, width, 3] of uint8, RGB, in host memory. Throws Error(kInvalidArgument) for
  // invalid options, a prompt with more tokens than the text encoder takes, and a memory limit too
  // low for such an image, before any model runs.
  at::Tensor operator()(const std::string& prompt, const PictureOptions& options = {});

 private:
  struct State;
  explicit TextToImage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A folder with the shapes of Stable Diffusion 1 and random weights, for tests and benchmarks
// without the real weights; its images are noise. 2.1 GB in half, 4.3 GB in float. The tokenizer
// has single bytes only. Throws Error(kIo).
struct RandomModelOptions {
  uint64_t seed = 0;                              // of the values
  c10::ScalarType dtype = c10::ScalarType::Half;  // of the files
};
// Writes the folder.
void write_random_stable_diffusion(const std::string& folder,
                                   const RandomModelOptions& options = {});

}  // namespace coupler::diffusion
