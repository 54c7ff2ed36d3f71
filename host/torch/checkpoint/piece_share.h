// Decides which rank saves what several ranks hold alike. Pure function, any thread.
#pragma once

#include <vector>

#include "checkpoint/state_piece.h"

namespace coupler::checkpoint {

// The pieces that this rank saves: those that only it holds, and its share of those that other
// ranks hold, too. Ranks that hold the same pieces compute the same division without communication,
// in whole pieces and about equal bytes.
std::vector<StatePiece> own_share(const std::vector<StatePiece>& pieces);

}  // namespace coupler::checkpoint
