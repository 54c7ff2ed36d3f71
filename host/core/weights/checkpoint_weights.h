// The weights of a model in a Coupler checkpoint. Plain function, any thread.
#pragma once

#include <cstddef>
#include <string>

#include "weights/weight_source.h"

namespace coupler::weights {

// Opens model number `model` of the checkpoint in that folder. Sharded tensors are whole, and reads
// verify the checksums. Throws Error as checkpoint::open_checkpoint; kInvalidArgument if there is
// no such model; kIo naming the tensor if parts of it are in no file, or in two.
WeightSource open_checkpoint_weights(const std::string& folder, size_t model);

// The weights in DeepSpeed's checkpoints. Plain functions, any thread.

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

}  // namespace coupler::weights
