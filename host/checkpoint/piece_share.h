// Who saves what several ranks hold alike. Pure function, any thread.
#pragma once

#include <vector>

#include "checkpoint/state_piece.h"

namespace coupler::checkpoint {

// The pieces that this rank saves: its own, and its share of those that others hold, too. The ranks
// that hold the same pieces come to the same division without a word, each whole, about as many
// bytes for each.
std::vector<StatePiece> own_share(const std::vector<StatePiece>& pieces);

}  // namespace coupler::checkpoint
