// The rules for every manifest, read or to be written. Internal to manifest.cc and
// parse_manifest.cc; pure functions, any thread.
#pragma once

#include "checkpoint/manifest.h"

namespace coupler::checkpoint {

// Throws JsonProblem naming the key.
void check_rules(const Manifest& manifest);

}  // namespace coupler::checkpoint
