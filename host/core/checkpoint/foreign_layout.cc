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

// DeepSpeed writes a folder per step, which holds one of these files except with ZeRO 3.
bool is_deepspeed_step(const fs::path& folder) {
  return has(folder, "mp_rank_00_model_states.pt") ||
         has(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt");
}

}  // namespace

std::string foreign_layout(const std::string& folder) {
  if (is_deepspeed_step(folder))
    return "a DeepSpeed checkpoint (it contains …mp_rank_00_model_states.pt)";
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("global_step") && is_deepspeed_step(entry->path()))
      return fmt::format("a folder of DeepSpeed checkpoints (it contains {})", name);
  }
  // Accelerate pickles the optimizer; with sharding it writes folders instead.
  constexpr std::array kModels = {"model.safetensors", "model.safetensors.index.json",
                                  "pytorch_model.bin", "pytorch_model.bin.index.json"};
  for (const char* model : kModels) {
    if (!has(folder, model)) continue;
    for (const char* other : {"optimizer.bin", "random_states_0.pkl"}) {
      if (has(folder, other))
        return fmt::format("an Accelerate checkpoint ({} next to {})", model, other);
    }
  }
  if (has(folder, "pytorch_model_fsdp_0") || has(folder, "optimizer_0"))
    return "an Accelerate checkpoint with FSDP (it contains pytorch_model_fsdp_0 or optimizer_0)";
  return "";
}

}  // namespace coupler::checkpoint
