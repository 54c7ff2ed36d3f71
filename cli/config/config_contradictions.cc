#include "cli/config/config_contradictions.h"

#include <fmt/format.h>

namespace coupler::cli {
namespace {

// "train.toml:3:1: communication.gradients"
std::string key_of(const Config& config, const char* key) {
  const auto found = config.sources.find(key);
  return found == config.sources.end() ? key : fmt::format("{}: {}", found->second.text, key);
}

}  // namespace

std::vector<std::string> contradictions_of(const Config& config) {
  std::vector<std::string> result;
  const CommunicationConfig& communication = config.communication;
  if (communication.local_sgd_steps > 0 && communication.gradients != "none")
    result.push_back(
        fmt::format("{} is \"{}\", but with communication.local_sgd_steps = {} no "
                    "gradients are sent; set one of the two only",
                    key_of(config, "communication.gradients"), communication.gradients,
                    communication.local_sgd_steps));
  if (config.memory.offload_optimizer_device == "nvme" &&
      config.memory.offload_optimizer_nvme_path.empty())
    result.push_back(
        fmt::format("{} is \"nvme\", but no folder is named; set "
                    "memory.offload_optimizer_nvme_path to one on the disk",
                    key_of(config, "memory.offload_optimizer_device")));
  if (config.training.optimizer_in_backward && config.training.mixed_precision == "fp16")
    result.push_back(
        fmt::format("{} is true, but with fp16 all gradients have to be there before "
                    "it is known that none overflowed; use "
                    "training.mixed_precision = \"bf16\", or set it to false",
                    key_of(config, "training.optimizer_in_backward")));
  return result;
}

std::vector<std::string> contradictions_with_division(const Config& config) {
  std::vector<std::string> result;
  const std::string divides =
      fmt::format("but the backend {} divides the model", config.backend.use);
  if (config.memory.offload_optimizer_device != "none")
    result.push_back(fmt::format("{} is \"{}\", {} and has options of its own for that",
                                 key_of(config, "memory.offload_optimizer_device"),
                                 config.memory.offload_optimizer_device, divides));
  if (config.communication.local_sgd_steps > 0)
    result.push_back(
        fmt::format("{} is {}, {}: no rank could train by itself; set it to 0, or use "
                    "a transport",
                    key_of(config, "communication.local_sgd_steps"),
                    config.communication.local_sgd_steps, divides));
  if (config.communication.gradients == "powersgd")
    result.push_back(
        fmt::format("{} is \"powersgd\", {}, and its products need whole matrices; "
                    "use bf16, fp16 or int8, or a transport",
                    key_of(config, "communication.gradients"), divides));
  return result;
}

}  // namespace coupler::cli
