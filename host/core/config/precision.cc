#include "config/precision.h"

#include <fmt/format.h>

namespace coupler {
namespace {

constexpr const char* kRest =
    "parameters are stored, gradients reduced and optimizers run in the model's own types, "
    "unless the backend's options say otherwise";

}  // namespace

std::string describe_precision(const TrainingConfig& config) {
  const std::string& name = config.mixed_precision;
  if (name == "no") return fmt::format("everything computes in the model's own types; {}", kRest);
  const bool fp8 = name == "fp8";
  std::string text = fmt::format(
      "operations inside accelerator.autocast() compute in {} where that is safe (matrix products, "
      "convolutions), in fp32 where it is not (losses); {}",
      fp8 ? "bf16" : name, kRest);
  if (name == "fp16") {
    text += fmt::format(
        "; the loss scale starts at {} and is multiplied by {} after an overflow, by {} after {} "
        "steps without one",
        config.loss_scale_init_scale, config.loss_scale_backoff_factor,
        config.loss_scale_growth_factor, config.loss_scale_growth_interval);
  }
  if (fp8) {
    text += fmt::format(
        "; linear layers whose sizes are multiples of 16 multiply there in fp8: inputs and weights "
        "as e4m3, gradients as {}{}",
        config.fp8_format == "e4m3" ? "e4m3" : "e5m2",
        config.fp8_emulate ? "" : "; a device without fp8 matrix units is rejected at startup");
  }
  return text;
}

}  // namespace coupler
