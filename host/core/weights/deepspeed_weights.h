// The weights in DeepSpeed's checkpoints. Plain functions, any thread.
#pragma once

#include <string>

#include "weights/weight_source.h"

namespace coupler {

enum class DeepSpeedLayout {
  kNone,
  kStep,       // mp_rank_00_model_states.pt and the like
  kUniversal,  // zero/NAME/fp32.pt
};
DeepSpeedLayout deepspeed_layout(const std::string& folder);

// The step's folder that a file `latest` in the folder names, "" if there is no such file. Throws
// Error(kIo) if it does not name a folder.
std::string deepspeed_latest(const std::string& folder);

// Opens the folder of one step: the dictionary `key` of its file, "module" if `key` is "". Throws
// Error(kUnsupported) for weights divided among several files; the hint names the tool that joins
// them.
WeightSource open_deepspeed(const std::string& folder, const std::string& key);

// Opens a universal checkpoint: the parameters in fp32, and the tensors that only the model states
// file next to them has, such as buffers. Throws as open_deepspeed.
WeightSource open_deepspeed_universal(const std::string& folder, const std::string& key);

}  // namespace coupler
