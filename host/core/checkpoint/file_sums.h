// The checksums of a checkpoint's files (base/chunk_sums.h) in its manifest's state: under "sums",
// by file, sixteen hexadecimal digits per chunk. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace coupler::checkpoint {

std::string encode_sums(const std::vector<uint64_t>& sums);

// The checksums of one of the manifest's files. Throws Error(kIo) naming path if they are missing
// or malformed.
std::vector<uint64_t> sums_of(const Manifest& manifest, const std::string& name,
                              const std::string& path);

}  // namespace coupler::checkpoint
