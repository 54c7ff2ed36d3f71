// Reading files that hold a secret. Plain functions, [any-thread].
#pragma once

#include <cstddef>
#include <string>

namespace coupler {

// Reads at most `most` bytes of a regular file that this user (or root) owns and no one else may
// read. Throws Error(kConfig) "<name> <path> …" saying what is wrong; absent: the hint if the file
// cannot be opened or read.
std::string read_private_file(const std::string& name, const std::string& path, size_t most,
                              const std::string& absent);

}  // namespace coupler
