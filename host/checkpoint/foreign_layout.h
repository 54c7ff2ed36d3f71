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
    "'coupler checkpoint convert' reads its weights and writes a .safetensors file of them, which "
    "coupler::SafeTensors reads; the rest of another program's checkpoint is not read";

}  // namespace coupler::checkpoint
