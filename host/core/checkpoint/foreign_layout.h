// Recognizes other programs' checkpoints by the files in their folders. Plain function, any thread.
#pragma once

#include <string>

namespace coupler::checkpoint {

// What wrote the folder and how that is known, "" if unknown: "an Accelerate checkpoint
// (model.safetensors next to optimizer.bin)". Looks at names only.
std::string foreign_layout(const std::string& folder);

// The hint for an error about such a folder.
inline constexpr const char* kForeignHint =
    "'coupler checkpoint convert' turns its weights into a .safetensors file that "
    "coupler::SafeTensors reads; the rest of another program's checkpoint cannot be read";

}  // namespace coupler::checkpoint
