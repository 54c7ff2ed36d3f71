#include <coupler/error.h>
#include <coupler/text_to_image.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "json_file.h"

namespace coupler::diffusion {
namespace {

[[noreturn]] void unknown(const JsonObject& keys, const char* key, const std::string& value,
                          const char* known) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: {} '{}' is not supported; supported: {}", keys.where(), key,
                          for_message(value), known),
              {.subject = key, .hint = "use the scheduler_config.json of Stable Diffusion 1 or 2"});
}

std::vector<double> betas_of(const JsonObject& keys, int64_t count) {
  const double first = keys.number("beta_start", 0.0001), last = keys.number("beta_end", 0.02);
  const std::string kind = keys.text("beta_schedule", "linear");
  const bool scaled = kind == "scaled_linear";
  if (!scaled && kind != "linear") unknown(keys, "beta_schedule", kind, "scaled_linear, linear");
  if (first <= 0 || last >= 1 || first > last)
    keys.refuse("beta_start", "and 'beta_end' must satisfy 0 < beta_start <= beta_end < 1",
                "Stable Diffusion uses 0.00085 and 0.012");
  std::vector<double> betas;
  for (int64_t i = 0; i < count; ++i) {
    const double part = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    betas.push_back(scaled ? std::pow(std::lerp(std::sqrt(first), std::sqrt(last), part), 2)
                           : std::lerp(first, last, part));
  }
  return betas;
}

// Rounds half to even, as NumPy does.
int64_t rounded(double value) { return std::llrint(value); }

std::vector<int64_t> spread(const JsonObject& keys, int64_t trained, int64_t steps) {
  const std::string spacing = keys.text("timestep_spacing", "leading");
  const int64_t offset = keys.integer("steps_offset", 0);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t left = steps - 1 - i;
    if (spacing == "leading") {
      result.push_back(left * (trained / steps) + offset);
    } else if (spacing == "trailing") {
      const double ratio = static_cast<double>(trained) / static_cast<double>(steps);
      result.push_back(rounded(static_cast<double>(trained) - static_cast<double>(i) * ratio) - 1);
    } else if (spacing == "linspace") {
      result.push_back(steps == 1 ? 0
                                  : rounded(static_cast<double>(left * (trained - 1)) /
                                            static_cast<double>(steps - 1)));
    } else {
      unknown(keys, "timestep_spacing", spacing, "leading, trailing, linspace");
    }
    if (result.back() < 0 || result.back() >= trained)
      keys.refuse("steps_offset",
                  fmt::format("of {} leads to timestep {} of {}", offset, result.back(), trained),
                  "use fewer steps, or an offset of 0 or 1");
  }
  return result;
}

}  // namespace

Ddim::Ddim(const ModelConfig& config, int64_t steps) {
  const JsonObject& keys = config.keys();
  const int64_t trained = keys.size("num_train_timesteps", 1000);
  if (steps < 1 || steps > trained)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} steps requested, but an image takes 1 to {}", steps, trained),
                {.subject = "steps", .hint = "20 to 50 steps are usual"});
  for (const char* key : {"trained_betas", "thresholding", "rescale_betas_zero_snr"}) {
    if (keys.has(key) && keys.raw(key) != false)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: '{}' is not supported", keys.where(), key),
                  {.subject = key,
                   .hint = "use a scheduler without it, such as Stable Diffusion 1's DDIM"});
  }
  const std::string prediction = keys.text("prediction_type", "epsilon");
  if (prediction == "v_prediction") {
    prediction_ = Prediction::kVelocity;
  } else if (prediction == "sample") {
    prediction_ = Prediction::kSample;
  } else if (prediction != "epsilon") {
    unknown(keys, "prediction_type", prediction, "epsilon, v_prediction, sample");
  }
  double kept = 1;
  for (const double beta : betas_of(keys, trained)) alphas_cumprod_.push_back(kept *= 1 - beta);
  final_alpha_cumprod_ = keys.flag("set_alpha_to_one", true) ? 1.0 : alphas_cumprod_.front();
  if (keys.flag("clip_sample", true)) clip_ = keys.number("clip_sample_range", 1.0);
  stride_ = trained / steps;
  timesteps_ = spread(keys, trained, steps);
}

at::Tensor Ddim::step(const at::Tensor& output, int64_t timestep, const at::Tensor& latents) const {
  const int64_t next = timestep - stride_;
  const double kept = alphas_cumprod_.at(static_cast<size_t>(timestep));
  const double kept_next =
      next < 0 ? final_alpha_cumprod_ : alphas_cumprod_.at(static_cast<size_t>(next));
  const double signal = std::sqrt(kept), noise = std::sqrt(1 - kept);
  at::Tensor picture, epsilon;
  switch (prediction_) {
    case Prediction::kEpsilon:
      epsilon = output;
      picture = latents.sub(output, noise).div(signal);
      break;
    case Prediction::kSample:
      picture = output;
      epsilon = latents.sub(output, signal).div(noise);
      break;
    case Prediction::kVelocity:
      picture = latents.mul(signal).sub(output, noise);
      epsilon = output.mul(signal).add(latents, noise);
      break;
  }
  if (clip_ > 0) picture = picture.clamp(-clip_, clip_);
  return picture.mul(std::sqrt(kept_next)).add(epsilon, std::sqrt(1 - kept_next));
}

}  // namespace coupler::diffusion
