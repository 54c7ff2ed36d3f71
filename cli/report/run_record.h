// RunRecord: what a run left in a folder, for `coupler report`: the metrics of the jsonl tracker
// (docs/tracking.md) and the profile summaries of the ranks (docs/profiling.md). Values;
// single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace coupler::cli {

struct Point {
  double step = 0, value = 0;
};

struct RankProfile {
  int rank = 0;
  std::vector<double> step_seconds;
  double waiting_seconds = 0;  // within the steps
  uint64_t peak_memory_bytes = 0;
  struct Kind {
    uint64_t count = 0, bytes = 0;
    double seconds = 0;
  };
  std::map<std::string, Kind> communication;
  struct Group {
    uint64_t count = 0, bytes = 0;  // of operations
    double seconds = 0;             // from the submission of each to its end
    double waiting_seconds = 0;     // in which a thread was blocked on them
  };
  std::map<std::string, Group> groups;  // of the mesh, of the program's own, or "world"

  double seconds() const;  // of all steps together
};

struct RunRecord {
  std::string folder;
  // Points by metric name, sorted by step; with several files, "subfolder: name" for a subfolder's.
  std::map<std::string, std::vector<Point>> metrics;
  std::vector<RankProfile> ranks;  // sorted by rank
  std::vector<std::string> notes;  // what could not be read
};

// Reads the folder and its subfolders. Throws Error(kIo) if they hold neither kind of file.
RunRecord read_run(const std::string& folder);

}  // namespace coupler::cli
