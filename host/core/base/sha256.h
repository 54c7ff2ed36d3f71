// Compares a file with the pin of backend.sha256. [any-thread]
#pragma once

#include <string>

namespace coupler {

// Throws Error(kPlugin) with both hashes if they differ, Error(kConfig) if wanted is not 64
// hexadecimal digits. fd is open for reading; path is for the message.
void check_sha256(const std::string& path, int fd, const std::string& wanted);

}  // namespace coupler
