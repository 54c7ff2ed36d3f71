// An explicit-state model of how three ranks save checkpoints while they train: every interleaving
// of their steps, with a fault possible at each one, is looked at once (breadth first). What it
// models is host/checkpoint/job_writer.h with folder_writer.h, and when host/train/checkpoints.cc
// begins a save. Single-threaded; plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coupler::checkpoint::model {

inline constexpr int kRanks = 3;
inline constexpr int kSaves = 3;  // of one job

// What the code does, and what it did before saves had identities: then every save of one number
// had the same folder, and a rank that learnt late of a failure left the next save out.
struct Protocol {
  bool identity = true;
  bool restart =
      false;  // the job may be killed but for one rank, which goes on writing, and start again
};

enum class Action : uint8_t {
  kStep,     // one more optimizer step, and the end of the loop's body
  kBegin,    // rank 0 makes the folder and announces it; the others hear of it
  kWrite,    // the rank's pieces
  kReport,   // the rank's files, to rank 0
  kCommit,   // rank 0: what all reported, or throwing it away
  kLearn,    // how it ended
  kRestart,  // the job is killed, but for this rank's writing, and starts again
  kGhost,    // what that rank writes
};

enum class Fault : uint8_t {
  kNone,
  kFails,    // making the folder, writing, committing
  kTimeout,  // rank 0 waits no longer for reports
  kStays,    // what is thrown away cannot be removed
};

struct Event {
  Action action{};
  int rank = 0;
  Fault fault = Fault::kNone;
  int save = 0;  // of the job, from 0, where one is under way
  int step = 0;  // that the rank is at
};
std::string to_string(const Event& event);

struct Found {
  std::string violation;      // "": none
  std::vector<Event> events;  // that lead there
  size_t states = 0;          // looked at
  size_t commits = 0, aborts = 0;
  std::vector<std::vector<Event>> paths;  // one to each kind of event with each fault, and more
};

// Looks at all states, or at all until one is wrong.
Found explore(const Protocol& protocol);

}  // namespace coupler::checkpoint::model
