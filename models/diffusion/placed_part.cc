#include "diffusion/placed_part.h"

#include <fmt/format.h>

#include <filesystem>

namespace coupler::diffusion {

std::string weights_of(const std::string& folder) {
  for (const char* const stem : {"model", "diffusion_pytorch_model"}) {
    for (const char* const kind :
         {".safetensors", ".safetensors.index.json", ".fp16.safetensors"}) {
      const std::filesystem::path path = std::filesystem::path(folder) / (stem + std::string(kind));
      if (std::filesystem::exists(path)) return path.string();
    }
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{} has no weights: neither model.safetensors nor "
                          "diffusion_pytorch_model.safetensors, nor an index of several",
                          folder),
              {.subject = folder,
               .hint = "save the model with diffusers' save_pretrained, as safetensors"});
}

}  // namespace coupler::diffusion
