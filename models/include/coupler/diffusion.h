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
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/model_config.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler::diffusion {

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
  int64_t stride_ = 1;        // of timesteps between two steps
  std::vector<double> kept_;  // share of the image at each timestep (cumulative alphas)
  double last_kept_ = 1;      // after the last step
  double clip_ = 0;           // bound of the image's values; 0: they are not clipped
  std::vector<int64_t> timesteps_;
};

}  // namespace coupler::diffusion
