#include "checkpoint/piece_share.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace coupler::checkpoint {

std::vector<StatePiece> own_share(const std::vector<StatePiece>& pieces) {
  // The largest first, each to the rank with the least so far.
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return pieces[a].values.nbytes() > pieces[b].values.nbytes();
  });
  std::map<int, std::vector<uint64_t>> loads;  // by number of copies, then by copy
  std::vector<bool> own(pieces.size(), false);
  for (const size_t i : order) {
    const StatePiece& piece = pieces[i];
    auto& load = loads[piece.copies];
    load.resize(static_cast<size_t>(piece.copies));
    const auto least = std::min_element(load.begin(), load.end());
    own[i] = least - load.begin() == piece.copy;
    *least += piece.values.nbytes() + 1;  // + 1 so that empty pieces are distributed, too
  }
  std::vector<StatePiece> result;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (own[i]) result.push_back(pieces[i]);
  }
  return result;
}

}  // namespace coupler::checkpoint
