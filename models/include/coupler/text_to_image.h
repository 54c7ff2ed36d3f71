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
#include <coupler/device_map.h>
#include <coupler/model_config.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coupler::diffusion {

// The parts of Stable Diffusion in plain LibTorch: text encoder, UNet, VAE decoder and DDIM. They
// have the tensor names, shapes and results of transformers' CLIPTextModel and diffusers'
// UNet2DConditionModel, AutoencoderKL and DDIMScheduler, so checkpoints of Stable Diffusion 1 and 2
// load. They are ordinary modules, loaded, placed and sharded like any other;
// coupler/text_to_image.h generates images with them.
//
//   coupler::diffusion::UNet unet(coupler::ModelConfig::open("sd-v1/unet"));
//   coupler::load_checkpoint_in_model(unet, "sd-v1/unet/diffusion_pytorch_model.safetensors");
//   at::Tensor noise = unet.forward(latents, 981, states);
//
// For inference: call them under torch::NoGradGuard. Each is used by one thread at a time.
// Constructors throw Error(kUnsupported) for an architecture, or a part of one, that is not
// supported, listing those that are, and Error(kInvalidArgument) for missing or invalid keys.

// CLIP's text encoder. Used by one thread.
class TextEncoder : public torch::nn::Module {
 public:
  // config: the part's config.json. Throws Error(kUnsupported) for anything not implemented.
  explicit TextEncoder(const ModelConfig& config);
  ~TextEncoder() override;

  // tokens: [batch, positions] of int64, at most positions() of them. Returns the last hidden
  // states, [batch, positions, width()].
  at::Tensor forward(const at::Tensor& tokens);

  // From the configuration: size of a hidden state, maximum number of tokens, vocabulary size.
  int64_t width() const { return width_; }
  int64_t positions() const { return positions_; }
  int64_t vocabulary() const { return vocabulary_; }

 private:
  struct Parts;
  int64_t width_ = 0, positions_ = 0, vocabulary_ = 0;
  std::shared_ptr<Parts> parts_;
};

// The denoising network. Used by one thread.
class UNet : public torch::nn::Module {
 public:
  // config: as for TextEncoder.
  explicit UNet(const ModelConfig& config);
  ~UNet() override;

  // latents: [batch, in_channels(), height, width]; timestep: shared by the batch; states: [batch,
  // tokens, text_width()] from the text encoder. Returns [batch, out channels, height, width].
  at::Tensor forward(const at::Tensor& latents, int64_t timestep, const at::Tensor& states);

  // From the configuration.
  int64_t in_channels() const { return in_channels_; }
  int64_t text_width() const { return text_width_; }
  // Approximate memory of forward in addition to the weights, for float latents of that shape.
  uint64_t activation_bytes(int64_t batch, int64_t height, int64_t width) const;

 private:
  struct Parts;
  int64_t in_channels_ = 0, text_width_ = 0;
  std::shared_ptr<Parts> parts_;
};

// The decoder of AutoencoderKL; the encoder's tensors are skipped.
class VaeDecoder : public torch::nn::Module {
 public:
  // config: as for TextEncoder.
  explicit VaeDecoder(const ModelConfig& config);
  ~VaeDecoder() override;

  // latents: [batch, latent_channels(), height, width], already divided by scaling_factor().
  // Returns [batch, 3, factor() × height, factor() × width], from about -1 to 1. Large activations
  // are processed in strips, so that only one is in memory at a time; the result does not depend on
  // where weights are stored.
  at::Tensor forward(const at::Tensor& latents);

  // From the configuration; factor(): pixels per latent along each side.
  int64_t latent_channels() const { return latent_channels_; }
  double scaling_factor() const { return scaling_factor_; }
  int64_t factor() const { return factor_; }
  // As in UNet.
  uint64_t activation_bytes(int64_t batch, int64_t height, int64_t width) const;

 private:
  struct Parts;
  int64_t latent_channels_ = 0, factor_ = 0;
  double scaling_factor_ = 0;
  std::shared_ptr<Parts> parts_;
};

// For LoadOptions::rename: map older tensor names, and skip tensors that the module does not use.
std::string text_encoder_checkpoint_name(const std::string& name);
std::string vae_checkpoint_name(const std::string& name);

// Deterministic DDIM (eta 0). Immutable, any thread.
class Ddim {
 public:
  // config: scheduler_config.json of any scheduler of Stable Diffusion, whose betas are used;
  // missing keys have DDIMScheduler's defaults. steps: steps per image. Throws
  // Error(kInvalidArgument) for less than 1 and for more than the model was trained with.
  Ddim(const ModelConfig& config, int64_t steps);

  // Starting with the noisiest.
  const std::vector<int64_t>& timesteps() const { return timesteps_; }
  // output: the model's output for `latents` at a timestep. Returns the latents of the next step.
  at::Tensor step(const at::Tensor& output, int64_t timestep, const at::Tensor& latents) const;

 private:
  enum class Prediction { kEpsilon, kSample, kVelocity };
  Prediction prediction_ = Prediction::kEpsilon;
  int64_t stride_ = 1;                  // of timesteps between two steps
  std::vector<double> alphas_cumprod_;  // share of the image at each timestep (cumulative alphas)
  double final_alpha_cumprod_ = 1;      // after the last step
  double clip_ = 0;                     // bound of the image's values; 0: they are not clipped
  std::vector<int64_t> timesteps_;
};

}  // namespace coupler::diffusion

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
struct ImageOptions {
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
  // Reads the configurations and checks, or loads, the weights, from a folder of diffusers or of a
  // model on the Hugging Face Hub (see coupler/text.h). Throws Error(kIo) for a missing
  // file, Error(kUnsupported) for an unsupported architecture, and as load_checkpoint_and_dispatch
  // does, naming missing tensors.
  static TextToImage open(const std::string& model_or_folder,
                          const TextToImageOptions& options = {});
  ~TextToImage();
  TextToImage(TextToImage&&) noexcept;
  TextToImage& operator=(TextToImage&&) noexcept;

  // Returns [height, width, 3] of uint8, RGB, in host memory. Throws Error(kInvalidArgument) for
  // invalid options, a prompt with more tokens than the text encoder takes, and a memory limit too
  // low for such an image, before any model runs.
  at::Tensor operator()(const std::string& prompt, const ImageOptions& options = {});

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
