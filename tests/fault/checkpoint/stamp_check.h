// What a checkpoint of stamp_job must hold. Looks at every element of every tensor, whatever the
// manifest says of identities and sums. Plain function.
#pragma once

#include <string>

#include "checkpoint/manifest.h"

namespace coupler::testing_checkpoint {

// "" or what is not as it was after the manifest's step: "model-00002-of-00002.safetensors: element
// 3 of a is of step 352". Throws Error where a file cannot be read.
std::string check_stamps(const std::string& path, const checkpoint::Manifest& manifest);

}  // namespace coupler::testing_checkpoint
