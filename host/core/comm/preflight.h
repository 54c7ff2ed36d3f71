// Preflight: before a communicator is created, its ranks verify through the store that they agree,
// and those on one machine set up a flight recorder. Collective, bounded by timeout; stateless.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/flight_recorder.h"
#include "store/store.h"

namespace coupler::comm {

// What must be equal on every rank, in the order in which differences are reported.
using SharedSettings = std::vector<std::pair<std::string, std::string>>;

struct RendezvousInfo {
  std::shared_ptr<store::Store> store;  // of this communicator
  std::string name;
  int rank = 0;
  int world_size = 1;
  std::chrono::nanoseconds timeout{};
};

// Throws Error(kMismatch) naming key, ranks and both values, or Error(kTimeout) naming the ranks
// that never appeared.
void verify_settings(const RendezvousInfo& rendezvous, const SharedSettings& settings);

// Each rank's rank in the job, by rank. Throws Error(kTimeout) naming the first that is missing.
std::vector<int> share_world_ranks(const RendezvousInfo& rendezvous, int own);

// Throws Error(kTimeout): no sign of that rank within the timeout.
[[noreturn]] void throw_absent(const RendezvousInfo& rendezvous, int rank);

// Null on every rank if some rank cannot share the others' memory.
std::unique_ptr<FlightRecorder> share_recorder(const RendezvousInfo& rendezvous);

}  // namespace coupler::comm
