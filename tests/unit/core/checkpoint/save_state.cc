#include "save_state.h"

#include <utility>

namespace coupler::checkpoint::model {
namespace {

bool is_idle(const Rank& rank) {
  return rank.phase == Phase::kTraining || rank.phase == Phase::kEnded;
}

bool has_begun(const State& state, const Rank& rank, uint8_t id) {
  return state.job * kSaves + rank.saves > id;
}

bool has_learned(const State& state, const Rank& rank, uint8_t id) {
  return has_begun(state, rank, id) && (id_of(state, rank) > id || is_idle(rank));
}

void forget_save(State& state, uint8_t id, const Protocol& protocol) {
  const Rank& leader = state.ranks[0];
  const auto all = [&](auto&& holds) {
    return std::all_of(state.ranks.begin(), state.ranks.end(),
                       [&](const Rank& rank) { return holds(state, rank, id); });
  };
  if (all(has_begun)) state.announced[id] = 0;
  // The old protocol: a rank read the result once more.
  if (all(has_learned) && protocol.begins_alike) state.ends[id] = End::kOpen;
  const bool is_led = has_begun(state, leader, id) && !has_learned(state, leader, id);
  const bool is_collecting = leader.phase == Phase::kBegun || leader.phase == Phase::kOpened ||
                             leader.phase == Phase::kReported;
  if (has_begun(state, leader, id) && !(is_led && is_collecting)) state.reports[id] = {};
  Folder& folder = state.folders[id];
  if (protocol.own_folder) folder.number = 0;
  if (is_led || folder.place == Place::kCommitted) return;
  // No step reads it any more.
  for (Piece& piece : folder.pieces) {
    if (piece.save == id) piece = {};
  }
  if (folder.place != Place::kPartial) folder.step = 0;
}

State exchanged(State state) {
  std::swap(state.ranks[1], state.ranks[2]);
  for (auto& reports : state.reports) std::swap(reports[1], reports[2]);
  for (Folder& folder : state.folders) std::swap(folder.pieces[1], folder.pieces[2]);
  if (state.survivor_rank != kNobody) state.survivor_rank = 3 - state.survivor_rank;
  return state;
}

}  // namespace

bool simplify(State& state, const Protocol& protocol) {
  for (Rank& rank : state.ranks) {
    if (is_idle(rank)) rank.saving = 0;
  }
  for (uint8_t id = 0; id < kIds; ++id) forget_save(state, id, protocol);
  const Rank& leader = state.ranks[0];
  if (leader.phase != Phase::kClearing && leader.phase != Phase::kMaking) state.number = 0;
  if (is_idle(leader)) state.succeeds = 0;
  const State other = exchanged(state);
  const bool exchanges = bytes(other) < bytes(state);
  if (exchanges) state = other;
  return exchanges;
}

}  // namespace coupler::checkpoint::model
