// One state of the model in save_model.h. Plain values.
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
  // Rank 0 only: before it creates the folder, and between collecting and announcing.
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

// All bytes without padding, so that states can be compared and hashed as bytes.
struct Rank {
  uint8_t step = 0;    // optimizer steps
  uint8_t saves = 0;   // number begun
  uint8_t saving = 0;  // the step of the save in progress
  Phase phase = Phase::kTraining;
  Want want = Want::kNothing;
  uint8_t opened = kNobody;  // the folder of the open piece, whatever its current name
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
  uint8_t survivor_rank = kNobody;        // the rank it was
  std::array<uint8_t, kIds> announced{};  // 0: not yet, 1: the folder, 2: there is none
  std::array<std::array<uint8_t, kRanks>, kIds> reports{};  // 0: not yet, 1: written, 2: failed
  std::array<End, kIds> ends{};
  std::array<Folder, kIds> folders;  // by the save that created them
  uint8_t job = 0;
  uint8_t number = 0;    // of the folder that rank 0 is about to create
  uint8_t succeeds = 0;  // the result that rank 0 is about to announce
  uint8_t reported = 0;  // 1 + the save of the newest reported checkpoint
};
static_assert(sizeof(State) == 4 * 6 + 1 + 4 + 12 + 4 + 4 * 12 + 4);

inline std::string_view bytes(const State& state) {
  return {reinterpret_cast<const char*>(&state), sizeof state};
}

// The save that the rank has in progress, or its last one.
inline uint8_t id_of(const State& state, const Rank& rank) {
  return static_cast<uint8_t>(state.job * kSaves + std::max(0, rank.saves - 1));
}

// Clears values on which no further step depends, so that otherwise equal states become equal. Of
// two states that differ only by exchanging ranks 1 and 2, which behave the same, it chooses one.
// Returns whether it exchanged them.
bool simplify(State& state, const Protocol& protocol);

}  // namespace coupler::checkpoint::model
