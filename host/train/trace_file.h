// Traces as Chrome and Perfetto read them: JSON with an array traceEvents, times in microseconds
// from baseTimeNanoseconds. Pure functions over files; single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/profile.h"

namespace coupler {

struct TraceOrigin {
  int rank = 0;
  int64_t clock_offset = 0;  // nanoseconds to be added to make them rank 0's
};

// Adds the spans to the trace that LibTorch has written to `path`. Operations are asynchronous
// events, waits and work lie on their threads. Throws Error(kIo).
void add_spans(const std::string& path, const std::vector<KeptSpan>& spans,
               const TraceOrigin& origin);

// One trace of several ranks', in rank 0's time, each rank a group of processes. Throws Error(kIo)
// naming a file that is no trace.
void merge_traces(const std::vector<std::string>& paths, const std::string& merged);

}  // namespace coupler
