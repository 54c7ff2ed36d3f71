// RunRecord: what a run left in a folder, for `coupler report`: the numbers of a jsonl tracker
// (docs/tracking.md) and the ranks' summaries of a profile (docs/profiling.md). Values;
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
  double waiting_seconds = 0;  // of the steps
  uint64_t peak_memory_bytes = 0;
  struct Kind {
    uint64_t count = 0, bytes = 0;
    double seconds = 0;
  };
  std::map<std::string, Kind> communication;

  double seconds() const;  // of all steps
};

struct RunRecord {
  std::string folder;
  // Numbers by name, by step; of several files those of a folder within are "folder: name".
  std::map<std::string, std::vector<Point>> metrics;
  std::vector<RankProfile> ranks;  // by rank
  std::vector<std::string> notes;  // what could not be read
};

// Of the folder and those in it. Throws Error(kIo) where there is neither kind of file.
RunRecord read_run(const std::string& folder);

}  // namespace coupler::cli
