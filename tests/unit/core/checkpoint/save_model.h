// An explicit-state model of three ranks that save checkpoints while they train. Every interleaving
// of their calls, with every fault and a kill possible at each, is explored once, breadth-first. It
// models host/core/checkpoint/checkpoint_commit.h with folder_writer.h, call by call as far as
// other processes can distinguish them, and when host/torch/accelerator/checkpoints.cc begins a
// save; total_limit is 1. Single-threaded; plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coupler::checkpoint::model {

inline constexpr int kRanks = 3;
inline constexpr int kSaves = 3;          // per job
inline constexpr int kIds = kSaves + 1;   // plus one of the job that starts after a kill
inline constexpr int kSurvivor = kRanks;  // as a rank: a process that outlives its job
inline constexpr int kNo = -1;            // no rank or no folder

// The rules of the code; each can be left out, to see what would go wrong.
struct Protocol {
  bool own_folder = true;      // every save; otherwise the path of a failed one is reused
  bool steps_compared = true;  // with rank 0's, before a rank writes
  bool begins_alike = true;    // a rank that learns late of a failure does not skip a save
  bool prunes_last = true;     // once the new checkpoint has its name
};
inline constexpr Protocol kAsItWas{
    .own_folder = false, .steps_compared = false, .begins_alike = false};

enum class Action : uint8_t {
  kStep,     // one more optimizer step, and the end of the loop's body
  kBegin,    // rank 0 begins a save; the others learn of it
  kHide,     // rank 0: renames a folder that it will remove
  kRemove,   // rank 0: removes that folder
  kMake,     // rank 0: creates the save's folder and announces it
  kOpen,     // the rank's piece
  kWrite,    // syncs the piece to the disk and reports it to rank 0
  kCollect,  // rank 0: all reports, and whether the files exist
  kList,     // rank 0: writes the manifest
  kName,     // rank 0: gives the checkpoint its name
  kTell,     // rank 0: announces the result
  kLearn,    // the other ranks learn the result
  kKill,     // kills the job, except for the writing of `rank`; then the job restarts
};

enum class Fault : uint8_t {
  kNone,
  kFails,
  kFailsAfter,  // done, but not synced to the disk
  kTimeout,     // rank 0 stops waiting for reports
};

struct Event {
  Action action{};
  int rank = 0;
  Fault fault = Fault::kNone;
  int save = 0;      // in progress on that rank, counted over both jobs
  int step = 0;      // that the rank has reached, or that it saves
  int folder = kNo;  // the hidden or removed one, by its save
};
std::string to_string(const std::vector<Event>& events);

enum class Place : uint8_t { kNowhere, kPartial, kHidden, kCommitted };
enum class End : uint8_t { kOpen, kSaved, kFailed };

struct Path {
  std::vector<Event> events;
  // The state after the events, by save:
  std::array<Place, kIds> folders{};
  std::array<End, kIds> ends{};  // as announced by rank 0
};

enum class Violation : uint8_t {
  kTorn,     // a checkpoint lacks a piece, or has an open one, or one of another save or step
  kForeign,  // a save's folder contains a piece of another save
  kLost,     // the newest reported checkpoint and all newer ones are gone
  kStuck,    // ranks wait for each other
};

struct Found {
  std::map<Violation, Path> violations;  // the shortest path to the first of each kind
  size_t states = 0;                     // explored
  size_t events = 0;
  std::map<std::pair<Action, Fault>, size_t> kinds;  // of events
  std::vector<Path> paths;                           // together they contain every kind of event
};

struct Exploration {
  std::optional<Violation> until = {};  // the exploration stops there
  bool contexts = false;  // for `paths`: kinds of events also differ by the ranks' phases
};
Found explore(const Protocol& protocol, const Exploration& exploration = {});

}  // namespace coupler::checkpoint::model
