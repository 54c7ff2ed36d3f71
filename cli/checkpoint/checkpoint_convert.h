// coupler checkpoint convert. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// words[0] is "convert". Returns the exit code.
int convert_checkpoint(const std::vector<std::string>& words);

}  // namespace coupler::cli
