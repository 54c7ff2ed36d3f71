#include "checkpoint/foreign_layout.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <system_error>

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

bool has(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

// DeepSpeed writes a folder for each step; of all but ZeRO 3 it holds these.
bool is_deepspeed_step(const fs::path& folder) {
  return has(folder, "mp_rank_00_model_states.pt") ||
         has(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt");
}

}  // namespace

std::string foreign_layout(const std::string& folder) {
  if (is_deepspeed_step(folder))
    return "a checkpoint of DeepSpeed (it holds …mp_rank_00_model_states.pt)";
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("global_step") && is_deepspeed_step(entry->path()))
      return fmt::format("a folder of DeepSpeed's checkpoints (it holds {})", name);
  }
  // Accelerate's optimizer is a pickle; with sharding it writes folders instead.
  constexpr std::array kModels = {"model.safetensors", "model.safetensors.index.json",
                                  "pytorch_model.bin", "pytorch_model.bin.index.json"};
  for (const char* model : kModels) {
    if (!has(folder, model)) continue;
    for (const char* other : {"optimizer.bin", "random_states_0.pkl"}) {
      if (has(folder, other))
        return fmt::format("a checkpoint of Accelerate ({} beside {})", model, other);
    }
  }
  if (has(folder, "pytorch_model_fsdp_0") || has(folder, "optimizer_0"))
    return "a checkpoint of Accelerate with FSDP (it holds pytorch_model_fsdp_0 or optimizer_0)";
  return "";
}

}  // namespace coupler::checkpoint
