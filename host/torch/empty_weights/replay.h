// Runs recorded operations for real. Only one replay runs at a time in the process, since all use
// the default generator. The thread's modes and the generator's state are restored whenever a sink
// is called, and afterwards.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "empty_weights/recording.h"

namespace coupler::empty_weights {

// Plans which recorded operations must run to give some storages their values, and when each
// storage's memory can be freed. Pure; the caller holds the recording's lock.

struct ReplayStep {
  size_t operation = 0;
  bool skip_draw = false;          // only move the generator to where this operation left it
  std::vector<uint64_t> finished;  // wanted storages that nothing touches after this step
  std::vector<uint64_t> dead;      // storages whose contents are not read after it
  // The operation fills a storage and runs on one chunk after another, each followed by these later
  // operations on it (fill_in_chunks.h).
  bool in_chunks = false;
  std::vector<size_t> later;
};

// The recorded storages that an operation reads, writes or makes.
std::set<uint64_t> touched_by(const RecordedOperation& operation);

// Steps in recorded order. With `stream_end`, also the draws that lead to the state in which the
// last random operation left the generator.
std::vector<ReplayStep> plan_replay(const std::deque<RecordedOperation>& operations,
                                    std::unordered_set<uint64_t> wanted, bool stream_end);

// The dispatch keys that are off while operations are recorded or replayed: EmptyWeights' own and
// autocast.
c10::DispatchKeySet recording_keys();

// While held, no other thread replays; a replay changes the default generator's state.
std::unique_lock<std::recursive_mutex> exclude_replays();

struct ReplayReport {
  size_t operations = 0;  // that ran
  size_t peak_bytes = 0;  // held at one time for tensors, except what the sink keeps and an
                          // operation's own scratch memory
};

using StorageSink = std::function<void(uint64_t storage, const c10::Storage& value)>;

// The size of chunks, unless a caller asks for another: large enough that ranks lose nothing by
// exchanging one after another, and small next to a model.
constexpr size_t kChunkBytes = size_t{4} << 20;

// Wanted storages whose values may come in chunks.
struct StoragesInChunks {
  std::unordered_map<uint64_t, at::ScalarType> types;  // of the tensor that fills each
  // Gets the elements from `begin` on. The chunk is the replay's memory, which the next one reuses;
  // the sink may change it.
  std::function<void(uint64_t storage, int64_t begin, const at::Tensor& chunk)> sink;
  size_t bytes = kChunkBytes;
};

// Passes each wanted storage to `sink` once, right after the last operation that touches it. One
// that chunked_fills finds among chunks.types goes to chunks.sink instead, while it is being
// filled.
ReplayReport replay(const std::shared_ptr<Recording>& recording,
                    const std::unordered_set<uint64_t>& wanted, const StorageSink& sink,
                    const StoragesInChunks& chunks = {});

// The values of a recorded tensor now, while its scope may still be open; nullopt if they are drawn
// at random.
std::optional<at::Tensor> value_of(const at::Tensor& recorded);

}  // namespace coupler::empty_weights
