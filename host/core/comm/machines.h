// Machines: which ranks run on one machine, as their launchers say. Collective, bounded by the
// timeout of the rendezvous; stateless.
#pragma once

#include <string>
#include <vector>

#include "comm/preflight.h"
#include "rendezvous/process_info.h"

namespace coupler::comm {

// What a rank says about where it is.
struct RankPlace {
  std::string machine;  // the host's name and the running kernel's id
  int local_rank = 0;
  int local_size = 1;
};

// The machine of each rank, by its ranks in the order of their local ranks. A launcher's local
// ranks decide: several launchers on one computer are several machines. Ranks with the same machine
// and local_size fill one up before the next begins. Throws Error(kMismatch) naming two ranks if a
// machine's ranks come with different sizes, or naming the rank that is missing. A pure function.
std::vector<std::vector<int>> machines_of(const std::vector<RankPlace>& places);

// The ranks of this rank's machine, from what all ranks set in the store.
std::vector<int> share_machine(const RendezvousInfo& rendezvous,
                               const rendezvous::ProcessInfo& process);

}  // namespace coupler::comm
