// The parts of Stable Diffusion in plain LibTorch: text encoder, UNet, the decoder of the VAE, and
// DDIM, with the tensor names, shapes and results of transformers' CLIPTextModel and diffusers'
// UNet2DConditionModel, AutoencoderKL and DDIMScheduler, so that checkpoints of Stable Diffusion 1
// and 2 fit. Ordinary modules: they are loaded, placed and divided like any other;
// coupler/text_to_image.h makes pictures with them.
//
//   coupler::diffusion::UNet unet(coupler::ModelConfig::open("sd-v1/unet"));
//   coupler::load_checkpoint_in_model(unet, "sd-v1/unet/diffusion_pytorch_model.safetensors");
//   at::Tensor noise = unet.forward(latents, 981, states);
//
// For inference: call them under torch::NoGradGuard. Each belongs to one thread at a time.
// Constructors throw Error(kUnsupported) for an architecture, or a part of one, that is not there,
// naming those that are, and Error(kInvalidArgument) for keys that are missing or wrong.
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
  // config: config.json of the part. Throws Error(kUnsupported) for what is not implemented.
  explicit TextEncoder(const ModelConfig& config);
  ~TextEncoder() override;

  // tokens: [batch, positions] of int64, at most positions() of them. The last hidden states,
  // [batch, positions, width()].
  at::Tensor forward(const at::Tensor& tokens);

  // As the configuration has them: the size of a state, the most tokens, how many tokens there are.
  int64_t width() const { return width_; }
  int64_t positions() const { return positions_; }
  int64_t vocabulary() const { return vocabulary_; }

 private:
  struct Parts;
  int64_t width_ = 0, positions_ = 0, vocabulary_ = 0;
  std::shared_ptr<Parts> parts_;
};

// The network that takes noise out of latents. Used by one thread.
class UNet : public torch::nn::Module {
 public:
  // config: as TextEncoder's.
  explicit UNet(const ModelConfig& config);
  ~UNet() override;

  // latents: [batch, in_channels(), height, width]; timestep: that of all of them; states: [batch,
  // tokens, text_width()], as the text encoder gives them. [batch, out channels, height, width].
  at::Tensor forward(const at::Tensor& latents, int64_t timestep, const at::Tensor& states);

  // As the configuration has them.
  int64_t in_channels() const { return in_channels_; }
  int64_t text_width() const { return text_width_; }
  // About what forward takes beside the weights, for latents of that shape in float.
  uint64_t activation_bytes(int64_t batch, int64_t height, int64_t width) const;

 private:
  struct Parts;
  int64_t in_channels_ = 0, text_width_ = 0;
  std::shared_ptr<Parts> parts_;
};

// The half of AutoencoderKL that makes pictures; the encoder's tensors are passed over.
class VaeDecoder : public torch::nn::Module {
 public:
  // config: as TextEncoder's.
  explicit VaeDecoder(const ModelConfig& config);
  ~VaeDecoder() override;

  // latents: [batch, latent_channels(), height, width], divided by scaling_factor() before.
  // [batch, 3, factor() × height, factor() × width], from about -1 to 1. Large activations are held
  // and used strip by strip, so that one of them is in memory at a time, and what is computed does
  // not depend on where weights are.
  at::Tensor forward(const at::Tensor& latents);

  // As the configuration has them; factor(): pixels of a latent along each side.
  int64_t latent_channels() const { return latent_channels_; }
  double scaling_factor() const { return scaling_factor_; }
  int64_t factor() const { return factor_; }
  // As UNet's.
  uint64_t activation_bytes(int64_t batch, int64_t height, int64_t width) const;

 private:
  struct Parts;
  int64_t latent_channels_ = 0, factor_ = 0;
  double scaling_factor_ = 0;
  std::shared_ptr<Parts> parts_;
};

// For LoadOptions::rename: older names of the same tensors, and what the module has no use for.
std::string text_encoder_checkpoint_name(const std::string& name);
std::string vae_checkpoint_name(const std::string& name);

// DDIM without noise of its own (eta 0). Immutable, any thread.
class Ddim {
 public:
  // config: scheduler_config.json of any scheduler of Stable Diffusion, whose betas are used; keys
  // that are missing have DDIMScheduler's defaults. steps: how many of them a picture takes. Throws
  // Error(kInvalidArgument) for less than 1 and for more than the model was trained with.
  Ddim(const ModelConfig& config, int64_t steps);

  // From the noisiest on.
  const std::vector<int64_t>& timesteps() const { return timesteps_; }
  // What the model gave for `latents` at a timestep; the latents of the next one.
  at::Tensor step(const at::Tensor& output, int64_t timestep, const at::Tensor& latents) const;

 private:
  enum class Prediction { kEpsilon, kSample, kVelocity };
  Prediction prediction_ = Prediction::kEpsilon;
  int64_t stride_ = 1;        // of timesteps between two steps
  std::vector<double> kept_;  // of the picture, at each timestep (cumulative alphas)
  double last_kept_ = 1;      // after the last step
  double clip_ = 0;           // of the picture's values; 0: they are not clipped
  std::vector<int64_t> timesteps_;
};

}  // namespace coupler::diffusion
