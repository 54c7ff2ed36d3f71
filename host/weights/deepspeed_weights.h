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

// The folder of the step that a file `latest` in the folder names, "" where there is no such file.
// Throws Error(kIo) where it names none.
std::string deepspeed_latest(const std::string& folder);

// Of a folder of one step: the dictionary `key` of its file, "module" where that is "". Throws
// Error(kUnsupported) for weights that are divided over several files, saying what joins them.
WeightSource open_deepspeed(const std::string& folder, const std::string& key);

// Of a universal checkpoint: the parameters in 32 bits, and what the file of model states beside
// them has that they lack, such as buffers. Throws as open_deepspeed.
WeightSource open_deepspeed_universal(const std::string& folder, const std::string& key);

}  // namespace coupler
