// What the model of save_model.h is in at one moment. Plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "save_model.h"

namespace coupler::checkpoint::model {

inline constexpr uint8_t kNobody = 0xff;

enum class Phase : uint8_t {
  kTraining,
  kBegun,
  kOpened,
  kReported,
  kEnded,
  // Rank 0's alone: before it makes the folder, and between collecting and telling.
  kClearing,
  kMaking,
  kListing,
  kNaming,
  kPruning,
  kSweeping,
  kAbandoning,
  kDiscarding,
  kTelling,
};
enum class Want : uint8_t { kNothing, kToBegin, kToWait };
enum class Form : uint8_t { kMissing, kOpen, kWhole };

// All of it is bytes without gaps, so that states are compared and hashed as such.
struct Rank {
  uint8_t step = 0;    // optimizer steps
  uint8_t saves = 0;   // begun
  uint8_t saving = 0;  // the step that the save under way is of
  Phase phase = Phase::kTraining;
  Want want = Want::kNothing;
  uint8_t opened = kNobody;  // in which folder, whatever that is called by now
};

struct Piece {
  Form form = Form::kMissing;
  uint8_t save = 0, step = 0;  // of the rank when it wrote
};

struct Folder {
  Place place = Place::kNowhere;
  uint8_t number = 0, step = 0;
  std::array<Piece, kRanks> pieces;
};

struct State {
  std::array<Rank, kRanks> ranks;
  Rank survivor;                          // `saves` is the save it writes, counted from 0
  uint8_t survivor_rank = kNobody;        // that it was
  std::array<uint8_t, kIds> announced{};  // 0: not yet, 1: the folder, 2: that there is none
  std::array<std::array<uint8_t, kRanks>, kIds> reports{};  // 0: not yet, 1: written, 2: failed
  std::array<End, kIds> ends{};
  std::array<Folder, kIds> folders;  // by the save that made them
  uint8_t job = 0;
  uint8_t number = 0;    // of the folder that rank 0 is about to make
  uint8_t succeeds = 0;  // what rank 0 is about to tell
  uint8_t reported = 0;  // 1 + the save of the newest checkpoint that was
};
static_assert(sizeof(State) == 4 * 6 + 1 + 4 + 12 + 4 + 4 * 12 + 4);

inline std::string_view bytes(const State& state) {
  return {reinterpret_cast<const char*>(&state), sizeof state};
}

// The save that is under way there, or was last.
inline uint8_t id_of(const State& state, const Rank& rank) {
  return static_cast<uint8_t>(state.job * kSaves + std::max(0, rank.saves - 1));
}

// Forgets what no step depends on any more, so that states which differ in nothing else are one.
// And of two that differ in nothing but which is rank 1 and which rank 2, who do the same, it takes
// one; returns whether it exchanged them.
bool simplify(State& state, const Protocol& protocol);

}  // namespace coupler::checkpoint::model
