// coupler checkpoint convert. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// The word itself comes first; the result is the exit code.
int convert_checkpoint(const std::vector<std::string>& words);

}  // namespace coupler::cli
