// Traces in the format of Chrome and Perfetto: JSON with an array traceEvents, times in
// microseconds from baseTimeNanoseconds. Stateless functions over files; single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "accelerator/profile.h"

namespace coupler {

struct TraceOrigin {
  int rank = 0;
  int64_t clock_offset = 0;  // nanoseconds to add to get rank 0's time
};

// Adds the spans to the trace that LibTorch has written to `path`. Operations become asynchronous
// events; waits and work become events of their threads. flops, by "External id", become arguments
// of the trace's operations. Throws Error(kIo).
void add_spans(const std::string& path, const std::vector<KeptSpan>& spans,
               const std::map<uint64_t, uint64_t>& flops, const TraceOrigin& origin);

// Merges the traces of several ranks into one, in rank 0's time, with each rank as a group of
// processes. Throws Error(kIo) naming a file that is not a trace.
void merge_traces(const std::vector<std::string>& paths, const std::string& merged);

}  // namespace coupler
