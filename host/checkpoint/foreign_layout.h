// Checkpoints of other programs, recognised by what lies in their folders. Plain function, any
// thread.
#pragma once

#include <string>

namespace coupler::checkpoint {

// What wrote the folder, with how that is known: "a checkpoint of Accelerate (model.safetensors
// beside optimizer.bin)"; "" where it is not known. Looks at names only.
std::string foreign_layout(const std::string& folder);

// What to do then: a hint for an error.
inline constexpr const char* kForeignHint =
    "checkpoints of other programs are not read by this version; their weights, a .safetensors "
    "file, "
    "are, by coupler::SafeTensors";

}  // namespace coupler::checkpoint
