// An explicit-state model of how three ranks save checkpoints while they train: every interleaving
// of their calls, with every fault and a kill possible at each one, is looked at once (breadth
// first). It models host/checkpoint/job_writer.h with folder_writer.h, call by call as far as other
// processes can tell them apart, and when host/train/checkpoints.cc begins a save; total_limit is
// 1. Single-threaded; plain values.
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
inline constexpr int kSaves = 3;          // of one job
inline constexpr int kIds = kSaves + 1;   // and one of the job that starts after a kill
inline constexpr int kSurvivor = kRanks;  // in place of a rank: what outlived its job and writes on
inline constexpr int kNo = -1;            // rank or folder

// What the code does; each can be left out, to see what would happen.
struct Protocol {
  bool own_folder = true;      // of every save; else the path of one that failed is used again
  bool steps_compared = true;  // with rank 0's, before a rank writes
  bool begins_alike = true;    // a rank that learns late of a failure leaves no save out
  bool prunes_last = true;     // once the new checkpoint has its name
};
inline constexpr Protocol kAsItWas{
    .own_folder = false, .steps_compared = false, .begins_alike = false};

enum class Action : uint8_t {
  kStep,     // one more optimizer step, and the end of the loop's body
  kBegin,    // rank 0 begins a save; the others hear of it
  kHide,     // rank 0: what it is to remove gets another name
  kRemove,   // rank 0: what has that name
  kMake,     // rank 0: the save's folder, and announces it
  kOpen,     // the rank's piece
  kWrite,    // forces it to the disk; and reports it to rank 0
  kCollect,  // rank 0: all reports, and whether the files are there
  kList,     // rank 0: the manifest
  kName,     // rank 0: the checkpoint gets its name
  kTell,     // rank 0: how it ended
  kLearn,    // the others
  kKill,     // the job, but for `rank`'s writing; then it starts again
};

enum class Fault : uint8_t {
  kNone,
  kFails,
  kFailsAfter,  // done, but not forced to the disk
  kTimeout,     // rank 0 waits no longer for reports
};

struct Event {
  Action action{};
  int rank = 0;
  Fault fault = Fault::kNone;
  int save = 0;      // that is under way there, counted over both jobs
  int step = 0;      // that the rank is at, or saves
  int folder = kNo;  // that is hidden or removed: of that save
};
std::string to_string(const std::vector<Event>& events);

enum class Place : uint8_t { kNowhere, kPartial, kHidden, kCommitted };
enum class End : uint8_t { kOpen, kSaved, kFailed };

struct Path {
  std::vector<Event> events;
  // After them, by save:
  std::array<Place, kIds> folders{};
  std::array<End, kIds> ends{};  // that rank 0 has told
};

enum class Violation : uint8_t {
  kTorn,     // a checkpoint lacks a piece, or has one of another save or step, or an open one
  kForeign,  // a save's folder has a piece of another save
  kLost,     // the newest checkpoint that was reported, and all newer ones, are gone
  kStuck,    // ranks wait for each other
};

struct Found {
  std::map<Violation, Path> violations;  // the shortest way to the first of each kind
  size_t states = 0;                     // looked at
  size_t events = 0;
  std::map<std::pair<Action, Fault>, size_t> kinds;  // of events
  std::vector<Path> paths;                           // which have every kind of event
};

struct Exploration {
  std::optional<Violation> until = {};  // stops there
  bool contexts = false;  // in `paths`: events in other phases of the ranks are of another kind
};
Found explore(const Protocol& protocol, const Exploration& exploration = {});

}  // namespace coupler::checkpoint::model
