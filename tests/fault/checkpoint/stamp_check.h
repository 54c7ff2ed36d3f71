// Checks the content of a checkpoint of stamp_job. Looks at every element of every tensor, whatever
// the manifest says about identities and checksums. Plain function.
#pragma once

#include <string>

#include "checkpoint/manifest.h"

namespace coupler::testing_checkpoint {

// "" or what differs from the state after the manifest's step: "element 3 of a is 6, not 10 as
// after step 4". Throws Error if a file cannot be read.
std::string check_stamps(const std::string& path, const checkpoint::Manifest& manifest);

}  // namespace coupler::testing_checkpoint
