// coupler checkpoint convert. Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// With what stands behind the word; the result is the exit code.
int convert_checkpoint(const std::vector<std::string>& arguments);

}  // namespace coupler::cli
