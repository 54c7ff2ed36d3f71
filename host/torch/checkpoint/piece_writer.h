// Writes one rank's part of a checkpoint into a file. Plain function, any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "checkpoint/state_piece.h"

namespace coupler::checkpoint {

// Writes directly from the pieces' memory, which must be contiguous; device memory is copied one
// tensor at a time. Returns when the file is on disk. Throws Error(kIo) naming the file, and leaves
// none.
WrittenFile write_pieces(const std::string& path, const std::vector<StatePiece>& pieces,
                         const std::map<std::string, std::string>& metadata);

}  // namespace coupler::checkpoint
