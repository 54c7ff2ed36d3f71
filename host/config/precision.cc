#include "config/precision.h"

#include <fmt/format.h>

namespace coupler {
namespace {

constexpr const char* kRest =
    "parameters are stored, gradients reduced and the optimizer run in the model's own types, "
    "unless the backend's options say otherwise";

}  // namespace

std::string describe_precision(const TrainingConfig& config) {
  const std::string& name = config.mixed_precision;
  if (name == "no") return fmt::format("everything computes in the model's own types; {}", kRest);
  if (name == "fp8") {
    return "linear layers through scaled matmul on devices with fp8 matrix units; no device of "
           "this "
           "version has any, so it is refused at start";
  }
  std::string text = fmt::format(
      "operations inside accelerator.autocast() compute in {} where that is safe (matrix products, "
      "convolutions), in fp32 where it is not (losses); {}",
      name, kRest);
  if (name == "fp16") {
    text += fmt::format(
        "; the loss is scaled by {} at first, by {} after an overflow, by {} after {} steps "
        "without",
        config.loss_scale_init_scale, config.loss_scale_backoff_factor,
        config.loss_scale_growth_factor, config.loss_scale_growth_interval);
  }
  return text;
}

}  // namespace coupler
